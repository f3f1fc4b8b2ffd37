"""The money path of the release before, as its guards run beside ours during a rollout."""
