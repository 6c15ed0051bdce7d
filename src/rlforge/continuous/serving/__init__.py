"""Serving a policy that changes: deployments, their validation, and the HTTP endpoint."""
