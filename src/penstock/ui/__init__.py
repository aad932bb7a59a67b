"""What a person sees: live progress and a report. Reads the event log only; a mistake here cannot change a run."""
