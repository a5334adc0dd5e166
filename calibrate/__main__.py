"""`python -m calibrate`: the same program as `simtrain calibrate`."""

from calibrate.app import app

if __name__ == "__main__":
    app()
