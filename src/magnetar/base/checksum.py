"""CRC32C (Castagnoli): Pulsar's frames, BookKeeper's entries and our journal records."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

crc32c: Callable[[bytes], int] = google_crc32c.value
"""CRC32C of some bytes, as an unsigned 32-bit int."""

crc32c_extend: Callable[[int, bytes], int] = google_crc32c.extend
"""CRC32C of what `crc` covers followed by `chunk`: `crc32c_extend(crc, chunk)`."""
