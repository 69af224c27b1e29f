"""A FastStream broker for headgate: `HeadgateBroker`, and `TestHeadgateBroker` to run handlers without a cluster."""

from typing import Annotated

from faststream import Context

from headgate_faststream import messages
from headgate_faststream.broker import HeadgateBroker, HeadgateRouter
from headgate_faststream.messages import HeadgateResponse
from headgate_faststream.testing import TestHeadgateBroker

HeadgateMessage = Annotated[messages.HeadgateMessage, Context("message")]
"""Annotation of a handler's argument: the message that it is called for."""

__all__ = ["HeadgateBroker", "HeadgateMessage", "HeadgateResponse", "HeadgateRouter", "TestHeadgateBroker"]
