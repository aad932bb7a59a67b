"""What a run will take, before it starts: functions from specs to numbers. ``penstock explain`` prints them."""
