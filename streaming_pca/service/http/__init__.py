"""HTTP server of a process: metrics, health and a site, with access and limits."""
