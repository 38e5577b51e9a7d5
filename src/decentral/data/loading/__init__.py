"""Loading of prepared data as batches on the device; these modules import torch, so only `DataSet.load` imports
them."""
