"""Where the runs of a sweep or a study are carried out: one file each, with its YAML in conf/launcher/."""
