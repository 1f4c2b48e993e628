"""Inside Ray's runtime-env agent: the plugin that wraps the selected workers."""
