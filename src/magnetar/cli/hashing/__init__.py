"""Commands that hash keys and compare rings, ranges and vnode maps."""
