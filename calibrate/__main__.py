"""`python -m calibrate`, which is `simtrain calibrate` too."""

from calibrate.app import app

if __name__ == "__main__":
    app()
