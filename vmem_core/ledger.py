"""What model calls take: reserved before they run, settled with what they report.

Owns limits in tokens and money, prices, allowed models and totals. Does not own the calls (``models.py``). Its lock
is held for arithmetic only, never during a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from vmem_core.errors import BudgetExceededError, InvalidRequestError, UnsupportedError
from vmem_core.values import check_choice, check_integer

Price = tuple[float, float]
"""Money for a million tokens read, and for a million written."""
PriceSource = Callable[[str], Price | None]
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Totals:
    """What the calls of a model, or of all models, took.

    Args:
        calls: How many ran, or run now.
        input_tokens: Tokens read: as reported, else as estimated.
        output_tokens: Tokens written: as reported, else as estimated.
        cost: Money, in the unit of the prices; calls without a known price add nothing.
        unknown: How many calls reported no usage, so that their estimate stands.
        models: The same by model id, in the whole only.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unknown: int = 0
    models: Mapping[str, Totals] = field(default_factory=dict)

    __hash__ = None  # type: ignore[assignment]

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens


@dataclass(slots=True, eq=False)
class Reservation:
    """One call in the ledger, first as it was estimated, then as it was reported."""

    kind: str
    model_id: str | None
    input_tokens: int
    output_tokens: int
    cost: float
    accounted: bool
    unknown: bool = True
    running: bool = True


class UsageLedger:
    """A budget for model and embedding calls, shared by as many sessions as you like.

    Args:
        max_tokens: Tokens read and written in all; None: no limit.
        max_cost: Money in all, in the unit of the prices; None: no limit.
        prices: ``{model: (in, out)}`` for a million tokens, or a function from a model id to such a pair or None.
        allowed_models: Only these model ids; None: all.
        unknown_price: Whether a model without a price, or a callable that reports no usage, may run: ``"allow"``
            or ``"reject"``.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> ledger = UsageLedger(max_tokens=1_000)
    >>> ledger.totals().tokens
    0
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        prices: Mapping[str, Price] | PriceSource | None = None,
        allowed_models: Collection[str] | None = None,
        unknown_price: Literal["allow", "reject"] = "allow",
    ) -> None:
        if max_tokens is not None:
            check_integer(max_tokens, "max_tokens", least=0)
        if max_cost is not None and not _is_amount(max_cost):
            raise InvalidRequestError("must be a number of 0 or more", path="max_cost")
        if isinstance(allowed_models, str) or not isinstance(allowed_models, Collection | None):
            raise InvalidRequestError("must be a set of model ids", path="allowed_models")
        check_choice(unknown_price, ("allow", "reject"), "unknown_price")
        self._max_tokens, self._max_cost = max_tokens, max_cost
        self._price_of = _price_source(prices)
        self._allowed = None if allowed_models is None else frozenset(allowed_models)
        self._rejects_unknown = unknown_price == "reject"
        self._lock = threading.Lock()
        self._calls: list[Reservation] = []
        self._settled: dict[str, Totals] = {}

    def reserve(
        self, kind: str, model_id: str | None, *, input_tokens: int, output_tokens: int, accounted: bool
    ) -> Reservation:
        """Set aside what a call is expected to take, or refuse it before it runs.

        Args:
            kind: ``memory-llm`` or ``memory-embedding``.
            model_id: The model, if known.
            input_tokens: Expected tokens read.
            output_tokens: Expected tokens written.
            accounted: Whether the callable promises to report its usage.

        Raises:
            BudgetExceededError: With the code ``model_not_allowed``, ``price_unknown`` or ``budget_exceeded``.
        """
        if self._allowed is not None and model_id not in self._allowed:
            raise BudgetExceededError(
                f"the model {model_id!r} is not allowed; add it to allowed_models, or name it with llm_model_id or "
                "embedder_model_id",
                code="model_not_allowed",
            )
        price = None if model_id is None else self._price_of(model_id)
        if self._rejects_unknown and (price is None or not accounted):
            raise BudgetExceededError(
                f"what a call of {model_id!r} costs cannot be known: give its price, and mark the callable with "
                "accounted(...)",
                code="price_unknown",
            )
        reservation = Reservation(
            kind, model_id, input_tokens, output_tokens, _cost(price, input_tokens, output_tokens), accounted
        )
        with self._lock:
            self._check_room(reservation)
            self._calls.append(reservation)
        return reservation

    def _check_room(self, reservation: Reservation) -> None:
        totals = self._totals()
        tokens = totals.tokens + reservation.input_tokens + reservation.output_tokens
        if self._max_tokens is not None and tokens > self._max_tokens:
            raise BudgetExceededError(
                f"the call would bring the total to about {tokens} tokens, the limit is {self._max_tokens}"
            )
        if self._max_cost is not None and totals.cost + reservation.cost > self._max_cost:
            raise BudgetExceededError("the call would bring the total above max_cost")

    def settle(
        self, reservation: Reservation, *, input_tokens: int, output_tokens: int, model_id: str | None = None
    ) -> None:
        """Put what a call reports in the place of its estimate.

        Args:
            reservation: From ``reserve``.
            input_tokens: Tokens read.
            output_tokens: Tokens written.
            model_id: The model that ran, if the answer names it.
        """
        model = model_id or reservation.model_id
        price = None if model is None else self._price_of(model)
        with self._lock:
            reservation.model_id = model
            reservation.input_tokens, reservation.output_tokens = input_tokens, output_tokens
            reservation.cost = _cost(price, input_tokens, output_tokens)
            reservation.unknown = reservation.running = False

    def keep(self, reservation: Reservation) -> None:
        """Let the estimate stand: the call has ended, by an error too, and reported nothing."""
        with self._lock:
            reservation.running = False

    def totals(self) -> Totals:
        """What all calls took so far, estimates of running and unaccounted ones included."""
        with self._lock:
            return self._totals()

    def _totals(self) -> Totals:
        self._fold()
        models = dict(self._settled)
        for call in self._calls:
            _add(models, call)
        whole = Totals()
        for one in models.values():
            whole = _sum(whole, one)
        return replace(whole, models=models)

    def _fold(self) -> None:
        """Keep running sums instead of a list that grows with every call."""
        open_calls = []
        for call in self._calls:
            if call.running:
                open_calls.append(call)
            else:
                _add(self._settled, call)
        self._calls = open_calls


def _add(models: dict[str, Totals], call: Reservation) -> None:
    name = call.model_id or "unknown"
    one = Totals(1, call.input_tokens, call.output_tokens, call.cost, int(call.unknown))
    models[name] = _sum(models.get(name, Totals()), one)


def _sum(a: Totals, b: Totals) -> Totals:
    return Totals(
        a.calls + b.calls,
        a.input_tokens + b.input_tokens,
        a.output_tokens + b.output_tokens,
        a.cost + b.cost,
        a.unknown + b.unknown,
    )


def _cost(price: Price | None, input_tokens: int, output_tokens: int) -> float:
    return 0.0 if price is None else (price[0] * input_tokens + price[1] * output_tokens) / _MILLION


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _price_source(prices: object) -> PriceSource:
    if prices is None:
        return lambda model_id: None
    if callable(prices):
        return prices
    if not isinstance(prices, Mapping):
        raise InvalidRequestError("must be {model: (in, out)} or a function of a model id", path="prices")
    table = {model: _check_price(model, price) for model, price in prices.items()}
    return table.get


def _check_price(model: object, price: object) -> Price:
    numbers = price if isinstance(price, list | tuple) else ()
    if len(numbers) != 2 or not all(map(_is_amount, numbers)):
        raise InvalidRequestError("must be two numbers of 0 or more, for a million tokens each", path=f"prices.{model}")
    return float(numbers[0]), float(numbers[1])


def genai_prices_source() -> PriceSource:
    """Prices in US dollars from the data inside the ``genai-prices`` package, with no network.

    Returns:
        A function for ``UsageLedger(prices=…)``; a model that the package does not know has no price.

    Raises:
        UnsupportedError: If the ``prices`` extra is not installed.
    """
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        raise UnsupportedError('needs the extra "prices": pip install "versioned-memory[prices]"') from None

    @cache
    def price_of(model_id: str) -> Price | None:
        try:
            read = calc_price(Usage(input_tokens=_MILLION), model_ref=model_id).total_price
            written = calc_price(Usage(output_tokens=_MILLION), model_ref=model_id).total_price
        except LookupError:
            return None
        return float(read), float(written)

    return price_of
