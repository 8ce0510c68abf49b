"""Targets: where a static model can be lowered to. The table is `bridge.targets.table`."""
