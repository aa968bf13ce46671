"""The S3 client: opened once, closed in order, its answers typed and its errors translated into one class each.

The only importer of aiobotocore and botocore. Tries nothing twice: `pacing` decides when to ask again, and sees every
refusal.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple, NewType, TypeVar

import aiohttp
import anyio
import anyio.to_thread
import botocore.exceptions
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.parsers import ResponseParserError

from monitor.errors import ConfigError, ReadError, RequestFailed
from monitor.reading import FileData, Version
from monitor.s3_url import without_password
from monitor.settings import S3Settings
from monitor.sources.s3_listing import ListedObject, ListPage

S3Client = NewType("S3Client", object)
"""An open client of aiobotocore, which has no types; only this module looks inside."""

CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 20.0
"""Silence for so long is a stalled answer."""
SLOWEST_BYTES_A_SECOND = 256 * 1024
MOST_CONNECTIONS = 64
MOST_KEYS = 1_000
"""S3 never lists more keys in one answer."""

KINDS_BY_CODE: Mapping[str, str] = {
    "AccessDenied": "denied",
    "403": "denied",
    "AllAccessDisabled": "denied",
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "InvalidToken": "expired",
    "ExpiredToken": "expired",
    "ExpiredTokenException": "expired",
    "TokenRefreshRequired": "expired",
    "RequestTimeTooSkewed": "clock_skew",
    "RequestExpired": "clock_skew",
    "NoSuchKey": "missing",
    "404": "missing",
    "NoSuchBucket": "no_bucket",
    "InvalidObjectState": "archived",
    "SlowDown": "throttled",
    "Throttling": "throttled",
    "ThrottlingException": "throttled",
    "RequestLimitExceeded": "throttled",
    "TooManyRequests": "throttled",
    "429": "throttled",
    "503": "throttled",
    "ServiceUnavailable": "throttled",
    "RequestTimeout": "timeout",
}

AnswerT = TypeVar("AnswerT")


class Bucket:
    """One bucket, asked once for each call.

    Args:
        requester_pays: agree to pay for the requests.
    """

    def __init__(self, client: S3Client, name: str, *, requester_pays: bool = False) -> None:
        self.name = name
        self._client: Any = client
        self._more: dict[str, str] = {"RequestPayer": "requester"} if requester_pays else {}

    async def list_page(
        self, prefix: str, *, after: str = "", token: str = "", delimiter: str = "", most: int = MOST_KEYS
    ) -> ListPage:
        """List keys that begin with a prefix.

        Args:
            after: begin behind this key; token: go on where the page before ended.
            delimiter: keys that hold it behind the prefix are told as folders, each once.

        Raises:
            RequestFailed: nothing is known of what is there.
        """
        words: dict[str, Any] = {"Bucket": self.name, "Prefix": prefix, "MaxKeys": most, **self._more}
        words |= {"StartAfter": after} if after else {}
        words |= {"ContinuationToken": token} if token else {}
        words |= {"Delimiter": delimiter} if delimiter else {}
        answer = await translated(f"list s3://{self.name}/{prefix}", lambda: self._client.list_objects_v2(**words))
        objects = [
            ListedObject(
                found["Key"],
                int(found["Size"]),
                seconds_of(found.get("LastModified")),
                str(found.get("ETag", "")).strip('"'),
            )
            for found in answer.get("Contents", ())
        ]
        folders = [found["Prefix"] for found in answer.get("CommonPrefixes", ())]
        return ListPage(objects, folders, answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else "")

    async def get(self, key: str, max_bytes: int) -> FileData | ReadError:
        """Download one object and verify its length and checksum; a ReadError where it is too large to be downloaded.

        Raises:
            RequestFailed: it is not there, may not be read, or came damaged.
        """
        what = f"read s3://{self.name}/{key}"
        answer = await translated(what, lambda: self._client.get_object(Bucket=self.name, Key=key, **self._more))
        body, size = answer["Body"], int(answer["ContentLength"])
        try:
            if size > max_bytes:
                reason = f"has {size} bytes, more than the {max_bytes} allowed"
                return ReadError(reason, kind="too_large", version=version_of(answer))
            with anyio.move_on_after(READ_TIMEOUT_SECONDS + size / SLOWEST_BYTES_A_SECOND) as scope:
                data: bytes = await translated(what, body.read)
                # Closing breaks the connection, which a body that was read to its end gives back by itself.
                body = None
        finally:
            if body is not None:
                body.close()
        if scope.cancelled_caught:
            raise RequestFailed(f"cannot {what}: the answer stalled", kind="timeout")
        verify(what, data, answer)
        return FileData(data, version_of(answer))

    async def put(self, key: str, data: bytes) -> None:
        """Upload one object, and make sure that the store holds the same bytes.

        Raises:
            RequestFailed: it does not, or it is not known.
        """
        what = f"write s3://{self.name}/{key}"
        digest = hashlib.md5(data, usedforsecurity=False)
        answer = await translated(
            what,
            lambda: self._client.put_object(
                Bucket=self.name,
                Key=key,
                Body=data,
                ContentMD5=base64.b64encode(digest.digest()).decode(),
                **self._more,
            ),
        )
        etag = str(answer.get("ETag", "")).strip('"')
        encrypted = "kms" in str(answer.get("ServerSideEncryption", ""))
        if len(etag) == 32 and not encrypted and etag != digest.hexdigest():
            raise RequestFailed(f"cannot {what}: the store holds other bytes (ETag {etag})", kind="broken_body")

    async def look(self, key: str) -> Version | None:
        """Return an object's version without reading it, or None where there is none.

        Raises:
            RequestFailed: nothing is known of it.
        """
        what = f"look at s3://{self.name}/{key}"
        try:
            answer = await translated(what, lambda: self._client.head_object(Bucket=self.name, Key=key, **self._more))
        except RequestFailed as error:
            if error.kind != "missing":
                raise
            return None
        return version_of(answer)


class Message(NamedTuple):
    """One message of a queue; `received` says how often it came, `receipt` is good for this time."""

    number: str
    receipt: str
    body: str
    received: int


class Queue:
    """One queue of SQS, asked once for each call."""

    def __init__(self, client: S3Client, url: str) -> None:
        self.url = url
        self._client: Any = client

    async def receive(self) -> list[Message]:
        """Wait for messages, up to 10 s and up to 10 of them.

        Raises:
            RequestFailed: the queue cannot be asked.
        """
        answer = await translated(
            f"receive from {self.url}",
            lambda: self._client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=10,
                AttributeNames=["ApproximateReceiveCount"],
            ),
        )
        return [
            Message(
                number=found["MessageId"],
                receipt=found["ReceiptHandle"],
                body=found["Body"],
                received=int(found.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
            )
            for found in answer.get("Messages", ())
        ]

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete up to 10 messages; one that stays comes back and is deleted then."""
        entries = [{"Id": str(place), "ReceiptHandle": receipt} for place, receipt in enumerate(receipts)]
        await translated(
            f"delete from {self.url}", lambda: self._client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        )

    async def hide(self, receipt: str, seconds: int) -> None:
        """Keep a message from coming back for a while."""
        await translated(
            f"hide a message of {self.url}",
            lambda: self._client.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=receipt, VisibilityTimeout=seconds
            ),
        )


@asynccontextmanager
async def open_s3_client(settings: S3Settings, service: str = "s3") -> AsyncIterator[S3Client]:
    """Open a client of S3, or of SQS ("sqs"); credentials come from the standard chain, which renews them as well.

    Raises:
        ConfigError: the profile or the endpoint cannot be used.
    """
    session = AioSession(profile=settings.profile or None)
    config = AioConfig(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        max_pool_connections=MOST_CONNECTIONS,
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",  # uploads carry their MD5, which every store knows
        signature_version=UNSIGNED if settings.anonymous else None,
        s3={"addressing_style": "path" if settings.path_style else "auto"},
        user_agent_extra="phasewatch",
    )
    try:
        await anyio.to_thread.run_sync(load_models, session, service)
        opening = session.create_client(
            service,
            region_name=settings.region or None,
            endpoint_url=settings.endpoint or None,
            config=config,
        )
        client = await opening.__aenter__()
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        told = without_password(str(error))
        raise ConfigError(
            f"cannot open a client of {service}: {told}; check the source's profile and endpoint"
        ) from error
    try:
        yield S3Client(client)
    finally:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 2.0):
            await opening.__aexit__(None, None, None)


def load_models(session: AioSession, service: str) -> None:
    """Read the client's description from disk, which takes long: in a thread, before the loop needs it."""
    loader = session.get_component("data_loader")
    for name in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model(service, name)
    for name in ("endpoints", "partitions", "sdk-default-configuration"):
        loader.load_data(name)


async def translated(what: str, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """Ask, and raise RequestFailed with its class where that fails."""
    try:
        return await ask()
    except botocore.exceptions.ClientError as error:
        found = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        told = f"{found.get('Code', status)}: {found.get('Message', 'no message')}"
        raise RequestFailed(f"cannot {what}: {told}", kind=kind_of_code(str(found.get("Code")), status)) from error
    except (botocore.exceptions.BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError) as error:
        told = without_password(str(error)) or type(error).__name__  # it may name the endpoint
        raise RequestFailed(f"cannot {what}: {told}", kind=kind_of_error(error)) from error


def kind_of_code(code: str, status: int) -> str:
    """Tell the class of an answer that says an error."""
    kind = KINDS_BY_CODE.get(code) or KINDS_BY_CODE.get(str(status))
    return kind or ("server" if status >= 500 else "other")


def kind_of_error(error: Exception) -> str:
    """Tell the class of a request that got no whole answer."""
    match error:
        case botocore.exceptions.ConnectTimeoutError() | botocore.exceptions.ReadTimeoutError() | TimeoutError():
            return "timeout"
        case botocore.exceptions.NoCredentialsError() | botocore.exceptions.PartialCredentialsError():
            return "credentials"
        case botocore.exceptions.CredentialRetrievalError() | botocore.exceptions.TokenRetrievalError():
            return "credentials"
        case botocore.exceptions.FlexibleChecksumError() | botocore.exceptions.IncompleteReadError():
            return "broken_body"
        case botocore.exceptions.ResponseStreamingError() | aiohttp.ClientPayloadError():
            return "broken_body"
        case ResponseParserError():
            return "server"
        case botocore.exceptions.HTTPClientError() | aiohttp.ClientError() | OSError():
            return "connection"
    return "other"


def verify(what: str, data: bytes, answer: Mapping[str, Any]) -> None:
    """Check what came; raises RequestFailed. Checksums that S3 sends have been checked by the client already.

    An ETag is the MD5 of an object that was neither uploaded in parts nor encrypted with a key of KMS or the customer.
    """
    if len(data) != int(answer["ContentLength"]):
        raise RequestFailed(f"cannot {what}: {len(data)} of {answer['ContentLength']} bytes came", kind="broken_body")
    etag = str(answer.get("ETag", "")).strip('"')
    encrypted = "kms" in str(answer.get("ServerSideEncryption", "")) or "SSECustomerAlgorithm" in answer
    if len(etag) == 32 and not encrypted and hashlib.md5(data, usedforsecurity=False).hexdigest() != etag:
        raise RequestFailed(f"cannot {what}: its bytes do not have the MD5 {etag} of its ETag", kind="broken_body")


def version_of(answer: Mapping[str, Any]) -> Version:
    """Return what changes when an object does: (time in s, size in bytes, part of a digest of its ETag)."""
    digest = hashlib.md5(str(answer.get("ETag", "")).encode(), usedforsecurity=False).digest()
    return int(seconds_of(answer.get("LastModified"))), int(answer["ContentLength"]), int.from_bytes(digest[:7], "big")


def seconds_of(time: datetime | None) -> float:
    """Return seconds since the epoch; 0 for a store that does not tell."""
    return 0.0 if time is None else time.timestamp()
