"""Limits on the compressed images of one message, checked before any of them is decoded.

A PNG of 50 kB can hold 50 MB of pixels, and a progressive JPEG of 1 MB can take minutes.
"""

from vla_contract.protocol.errors import InvalidObservation

MAX_IMAGES = 32  # in one message
MAX_DECODED_BYTES = 64 * 2**20  # of all its images: ten of 1080p, or one of 4096 x 4096
MAX_SCANS = 100  # of one JPEG; encoders write 10 at most


class ImageBudget:
    """The number and size of images that one message can still have. Sizes come from the images' headers."""

    def __init__(self, images: int = MAX_IMAGES, decoded_bytes: int = MAX_DECODED_BYTES):
        self.max_images, self.max_bytes = images, decoded_bytes
        self._images = self._bytes = 0

    def spend(self, height: int, width: int, channels: int = 3) -> None:
        """Count one image. Raises InvalidObservation if the message has too many or too large images."""
        self._images += 1
        self._bytes += height * width * channels
        if self._images > self.max_images:
            raise InvalidObservation(f"the message has more than {self.max_images} images; send fewer")
        if self._bytes > self.max_bytes:
            raise InvalidObservation(
                f"the message's images have {self._bytes} bytes decoded; expected at most {self.max_bytes}: send "
                "smaller ones"
            )


def check_scans(data: bytes) -> None:
    """Raise InvalidObservation for a JPEG of more than MAX_SCANS scans: each costs the time of the whole image."""
    scans = data.count(b"\xff\xda")  # entropy-coded bytes never contain this marker
    if scans > MAX_SCANS:
        raise InvalidObservation(f"a JPEG has {scans} scans; expected at most {MAX_SCANS}: save it as a baseline JPEG")
