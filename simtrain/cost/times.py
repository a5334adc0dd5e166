"""Seconds of an hour and a day."""

HOUR_S = 3600
DAY_S = 86_400
