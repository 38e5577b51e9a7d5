"""Low-rank adapters of given modules by the library peft (`model.lora=`)."""
