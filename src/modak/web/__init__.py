"""HTTP: Stream Load, metrics and health. Answers only; what they are about is done elsewhere."""
