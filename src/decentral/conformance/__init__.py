"""Properties that every algorithm must have: the properties, in words, and the checks that the tests and
`decentral-check` share."""
