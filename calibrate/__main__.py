"""`python -m calibrate`: the same program as `simtrain calibrate`."""

from calibrate.app import app
from simtrain.commands.app import run_app

if __name__ == "__main__":
    run_app(app)
