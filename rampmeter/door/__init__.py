"""The HTTP door: OpenAI's chat completions in front of the topics, under the same budgets as every other producer."""
