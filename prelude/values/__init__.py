"""Values that a caller sets and that files hold, checked once: config, options, policies, arrays, strict JSON.
Nothing here knows an engine, a model or a request."""
