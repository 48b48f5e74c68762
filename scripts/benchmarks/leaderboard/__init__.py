"""Every mixer in one block under equal conditions: text, synthetic tasks and costs."""
