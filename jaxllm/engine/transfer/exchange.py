"""An engine's part in transfers of pages: what it keeps for others, and what it fetches from them."""

import logging
import threading
from typing import Any

from jaxllm.config.engine_info import KVTransferInfo
from jaxllm.config.kv_transfer import KVTransferSettings
from jaxllm.engine.transfer.identity import Identity
from jaxllm.engine.transfer.receiver import Receiver
from jaxllm.engine.transfer.sender import Sender
from jaxllm.kv.manager import KVManager
from jaxllm.kv.tiers.fetches import Ended, Fetch, Fetches, Source
from jaxllm.kv.tiers.transfer_counts import TransferCounts
from jaxllm.requests.kv_transfer import KVTransferParams
from jaxllm.requests.request import Request

logger = logging.getLogger(__name__)


class Exchange:
    """Belongs to a host tier, whose thread calls everything."""

    def __init__(
        self,
        settings: KVTransferSettings,
        rank: int,
        pages: KVManager,
        sizes: tuple[int, int],
        identity: Identity,
        news: threading.Event,
        num_devices: int = 1,
    ) -> None:
        """`sizes` are bytes of a page and of a state; `news` is set when something has come.

        Raises `ConfigError`.
        """
        assert pages.tier is not None
        self.settings = settings
        self.num_queries = 0
        """Requests that named pages of others."""
        self._pages, self._identity, self._num_devices = pages, identity, num_devices
        self._fetches: Fetches | None = None
        self._sender: Sender | None = None
        host, states = pages.tier.host, pages.groups.num_tables
        if settings.produces:
            leases = pages.use_leases(settings.lease_seconds)
            self._sender = Sender(settings, rank, host, leases, identity)
        if settings.consumes:
            self._fetches = Fetches(host, lambda part: sizes[part == states], states, settings.fetch_timeout)
            pages.tier.use_fetches(self._fetches)
            self._receiver = Receiver(settings, host, states, identity, news)
            self._fetches.start = self._receiver.fetch
            self._fetches.on_end = self._release
        self._num_fetched = 0

    @property
    def info(self) -> KVTransferInfo:
        """Which requests there may be."""
        settings, sender = self.settings, self._sender
        return KVTransferInfo(
            role=settings.role,
            has_secret=settings.secret_file is not None,
            peers=settings.peers,
            address=None if sender is None else f"{sender.address}:{sender.port}",
        )

    @property
    def description(self) -> str:
        """What it does, for people."""
        name = {"kv_producer": "keeps pages for others", "kv_consumer": "fetches pages from others"}
        text = name.get(self.settings.role, "exchanges pages with others")
        return text if self._sender is None else f"{text} at {self._sender.address}:{self._sender.port}"

    def _release(self, fetch: Fetch) -> None:
        self._receiver.release(fetch.source)

    # For engines that others fetch from

    def keep(self, request: Request) -> dict[str, Any] | None:
        """Keep the pages of a request's prompt, which has ended. What whoever fetches them must know; None: nothing."""
        assert self._sender is not None
        if self._identity.problem:
            return None
        held = self._pages.held_for_others(request)
        if held is None:
            return None
        lease, num_tokens = held
        num_pages = num_tokens // self._pages.block_size
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(num_pages))],
            "remote_engine_id": self.settings.engine_id,
            "remote_request_id": lease.name,
            "remote_host": self._sender.address,
            "remote_port": self._sender.port,
            "remote_num_tokens": num_tokens,
            "tp_size": self._num_devices,
            "transfer_mode": "pull",
        }

    def abort(self, request_id: str) -> None:
        """Nobody wants the answer to a request that has ended: its pages need not be kept."""
        if self._sender is not None:
            self._sender.leases.abort(request_id)

    # For engines that fetch

    def fetch(self, request: Request, params: KVTransferParams) -> bool:
        """Begin to fetch what a request names; whether it is to wait for that. `take_ended` has it later then."""
        assert self._fetches is not None
        assert params.remote_host is not None
        assert params.remote_port is not None
        assert params.remote_request_id is not None
        name, engine = params.remote_request_id, params.remote_engine_id
        source = Source(params.remote_host, params.remote_port, name, engine)
        self.num_queries += 1
        wanted, num_tokens = self._pages.wanted_from_others(request, params.remote_num_tokens)
        if not wanted or num_tokens < self.settings.recompute_threshold or self._identity.problem:
            self._receiver.release(source)
            return False
        self._fetches.begin(request, source, wanted, num_tokens)
        return True

    def take_ended(self) -> list[Ended]:
        """Requests that need not wait any more since the last call; some may have ended."""
        return [] if self._fetches is None else self._fetches.take_ended()

    def leave(self, request: Request) -> None:
        """A request has ended, or runs now: what was fetched for it need not stay."""
        if self._fetches is not None:
            self._fetches.leave(request)

    def give_up(self, params: KVTransferParams) -> None:
        """Nobody wants what a request names: its pages need not be kept."""
        if self._fetches is not None:
            assert params.remote_host is not None
            assert params.remote_port is not None
            assert params.remote_request_id is not None
            self._receiver.release(Source(params.remote_host, params.remote_port, params.remote_request_id))

    # For the host tier

    def on_step_begin(self) -> None:
        """Take what has come, and see whose time is up."""
        if self._fetches is not None:
            for fetch, copy, checksum, failure in self._receiver.came():
                if copy is not None:
                    self._fetches.come(fetch, copy, checksum)
                else:
                    self._num_fetched += failure is None and not fetch.is_over
                    self._fetches.stop(fetch, failure)
            if len(self._fetches):
                self._fetches.update()
        if self._sender is not None and len(self._sender.leases) and self._sender.leases.update():
            self._sender.wake()

    @property
    def is_behind(self) -> bool:
        """Whether anything is kept, or under way."""
        has_leases = self._sender is not None and len(self._sender.leases) > 0
        return has_leases or (self._fetches is not None and len(self._fetches) > 0)

    @property
    def is_copying(self) -> bool:
        """Whether anybody may wait for what is on its way to the host."""
        return self._sender is not None and self._sender.leases.is_copying

    def stop(self, problem: str) -> None:
        """Exchange nothing from now on."""
        self._identity.stop(problem)

    def counts(self) -> TransferCounts:
        """What it has done so far."""
        found: dict[str, Any] = {}
        if self._fetches is not None:
            fetches = self._fetches
            found = {
                **{str(name): count for name, count in fetches.num_failed.items()},
                "queries": self.num_queries,
                "fetches": self._num_fetched,
                "tokens": fetches.num_tokens,
                "bytes": fetches.num_bytes,
                "seconds": self._receiver.seconds,
            }
        if self._sender is not None:
            sender, leases = self._sender, self._sender.leases
            found |= {
                "sent_bytes": sender.num_bytes,
                "granted": leases.num_granted,
                "released": leases.num_released,
                "expired": leases.num_expired,
                "refused_peers": sender.num_refused,
                "foreign": sender.num_foreign,
                "leases": len(leases),
            }
        return TransferCounts(**found)

    def close(self) -> None:
        """End the threads."""
        if self._sender is not None:
            self._sender.close()
        if self._fetches is not None:
            self._receiver.close()
