"""Launchers, which run the jobs of a sweep or a study: one file each, with its YAML in conf/launcher/."""
