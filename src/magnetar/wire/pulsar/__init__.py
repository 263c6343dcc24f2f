"""The Pulsar binary protocol: frames, commands, message headers. Entry points: `frames.FrameDecoder`, `commands`, `headers`."""
