"""What has to be true of every algorithm: the properties, in words, and the checks that the tests and `decentral-check`
share."""
