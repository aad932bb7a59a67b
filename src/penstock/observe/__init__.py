"""What a run shows of itself: sentinels on watch over training, alarms, lanes of its roles, where its time went."""
