"""SQLAlchemy's and Django's models as users of a registered table with cold rows: what they do to it, a plain twin shows as well.

A story is a function that works with one model and says what it saw. It is told on the registered table and on the twin, through
Postgres and through the gateway's port; both must see the same and leave the same rows behind.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import conninfo
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.docs.blocks import Reader, blocks
from tests.shop import Shop, day, shop

from modak.embedded.postgres import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.inline]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "orms.md"


@pytest.fixture(scope="module", params=["name", "port"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def world(door: str, cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One for each door, since stories leave their marks."""
    with shop(cluster, template, tmp_path_factory.mktemp(door)) as made:
        yield made


class Base(DeclarativeBase):
    pass


class Columns:
    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    placed_at: Mapped[dt.datetime] = mapped_column(sa.TIMESTAMP(timezone=True))
    customer: Mapped[str]
    status: Mapped[str] = mapped_column(server_default="placed")
    amount: Mapped[Decimal] = mapped_column(sa.Numeric(12, 2))
    details: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    changed: Mapped[int] = mapped_column(server_default="0")

    def seen(self) -> tuple[Any, ...]:
        return (self.id, self.placed_at, self.customer, self.status, self.amount, self.details, self.changed)


class Order(Columns, Base):
    __tablename__ = "orders"


class PlainOrder(Columns, Base):
    __tablename__ = "orders_plain"


class Versioned(DeclarativeBase):
    pass


class VersionedOrder(Columns, Versioned):
    __tablename__ = "orders"

    @sa.orm.declared_attr.directive
    @classmethod
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.changed}  # type: ignore[attr-defined]


@pytest.fixture
def engine(world: Shop, door: str) -> Iterator[sa.Engine]:
    parts = conninfo.conninfo_to_dict(world.door(door))
    url = sa.URL.create(
        "postgresql+psycopg",
        parts["user"],
        parts.get("password"),  # type: ignore[arg-type]
        str(parts["host"]),
        int(str(parts["port"])),
        str(parts["dbname"]),
    )
    made = sa.create_engine(url, connect_args={"options": "-c timezone=UTC"})
    yield made
    made.dispose()


Story = Callable[[Session, type[Any]], Any]


def an_insert_knows_its_key_and_defaults(session: Session, model: type[Any]) -> Any:
    found = []
    for number in (3, 50):  # cold, hot
        one = model(placed_at=day(number), customer="new", amount=Decimal("9.99"), details={"a": [1, None]})
        session.add(one)
        session.flush()
        found.append(one.seen())
        session.commit()
        session.refresh(one)
        found.append(one.seen())
    return found


def many_rows_at_once(session: Session, model: type[Any]) -> Any:
    """INSERT … SELECT … FROM (VALUES …) ORDER BY … RETURNING: each object must get its own row's key."""
    made = [model(placed_at=day(n * 7 % 60), customer=f"bulk {n}", amount=n) for n in range(80)]
    session.add_all(made)
    session.commit()
    session.expire_all()
    assert [one.customer for one in made] == [f"bulk {n}" for n in range(80)]
    returned = session.execute(
        sa.insert(model).returning(model.id, model.customer, model.status, sort_by_parameter_order=True),
        [{"placed_at": day(n * 11 % 60), "customer": f"core {n}", "amount": n} for n in range(50)],
    ).all()
    session.commit()
    return [one.id for one in made], [tuple(row) for row in returned]


def rows_by_key(session: Session, model: type[Any]) -> Any:
    found = [session.get(model, key) for key in (1, 20, 55, 60, 100_000)]
    again = [session.get(model, key, populate_existing=True) for key in (1, 55)]
    return [one.seen() if one else None for one in (*found, *again)]


def objects_change(session: Session, model: type[Any]) -> Any:
    cold, hot = session.get_one(model, 5), session.get_one(model, 52)
    for one in (cold, hot):
        one.status, one.details = "paid", {**(one.details or {}), "paid": True}
        one.amount *= 2
    session.commit()
    cold.changed = model.changed + 1
    session.flush()
    # Across the line, both ways, and from one cold month to another.
    cold.placed_at, hot.placed_at = day(58), day(2)
    session.commit()
    other = session.get_one(model, 6)
    other.placed_at = day(30)
    session.commit()
    session.expire_all()
    return [one.seen() for one in (cold, hot, other)]


def changes_by_query(session: Session, model: type[Any]) -> Any:
    raised = session.execute(sa.update(model).where(model.customer == "customer 1").values(changed=model.changed + 1))
    held = session.get_one(model, 12)
    fetched = session.execute(
        sa.update(model).where(model.id.in_([11, 12, 51])).values(status="sent"), execution_options={"synchronize_session": "fetch"}
    )
    told = session.scalars(sa.update(model).where(model.placed_at > day(56)).values(changed=7).returning(model))
    sent = [held.status, sorted(one.id for one in told)]
    session.execute(sa.update(model), [{"id": key, "status": f"bulk {key}"} for key in (13, 14, 53)])
    session.commit()
    return raised.rowcount, fetched.rowcount, sent  # type: ignore[attr-defined]


def rows_go(session: Session, model: type[Any]) -> Any:
    for key in (15, 54):
        session.delete(session.get_one(model, key))
    session.commit()
    gone = session.execute(sa.delete(model).where(model.id.in_([16, 17, 55])).returning(model.id, model.customer)).all()
    session.commit()
    session.execute(sa.delete(model).where(model.customer == "customer 3", model.amount < 20))
    session.commit()
    return sorted(map(tuple, gone)), [session.get(model, key) for key in (15, 16, 54)]


def pages_and_counts(session: Session, model: type[Any]) -> Any:
    everything = sa.select(model).order_by(model.placed_at, model.id)
    pages = [[one.id for one in session.scalars(everything.limit(7).offset(start))] for start in range(0, 70, 7)]
    keyset, last = [], (day(0) - dt.timedelta(days=1), 0)
    while page := session.scalars(everything.where(sa.tuple_(model.placed_at, model.id) > sa.tuple_(*last)).limit(13)).all():
        keyset += [one.id for one in page]
        last = (page[-1].placed_at, page[-1].id)
    newest = session.scalars(sa.select(model.id).order_by(model.placed_at.desc(), model.id).limit(5)).all()
    streamed = [one.id for one in session.scalars(everything.execution_options(yield_per=10))]
    return (
        pages,
        keyset,
        newest,
        streamed == keyset,
        session.scalar(sa.select(sa.func.count()).select_from(model)),
        session.scalar(sa.select(sa.exists().where(model.id == 2))),
        session.execute(
            sa.select(model.customer, sa.func.count(), sa.func.sum(model.amount)).group_by(model.customer).order_by(model.customer)
        ).all(),
        session.scalars(sa.select(model.id).where(model.details["n"].as_integer() == 8)).all(),
        session.scalars(
            sa.select(model.id).where(model.customer.ilike("CUSTOMER 2"), model.amount.between(5, 60)).order_by(model.id)
        ).all(),
    )


def transactions_and_savepoints(session: Session, model: type[Any]) -> Any:
    found: list[Any] = []
    session.get_one(model, 21).status = "never"
    session.add(model(placed_at=day(4), customer="never", amount=1))
    session.flush()
    found.append(session.scalar(sa.select(sa.func.count()).where(model.customer == "never")))
    session.rollback()
    found.append(session.get_one(model, 21).status)
    for key in (22, 56):
        session.get_one(model, key).changed = 1
        nested = session.begin_nested()
        session.get_one(model, key).changed = 2
        session.delete(session.get_one(model, key + 1))
        session.flush()
        found.append(session.scalar(sa.select(model.changed).where(model.id == key)))
        nested.rollback()
        found += [session.get_one(model, key).changed, session.get(model, key + 1) is not None]
    for number in (5, 50):  # what a constraint refuses, it refuses in either tier
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.execute(sa.insert(model).values(placed_at=day(number), customer=None, amount=1))
    session.commit()
    return found


STORIES: list[Story] = [
    an_insert_knows_its_key_and_defaults,
    rows_by_key,
    objects_change,
    changes_by_query,
    rows_go,
    transactions_and_savepoints,
    many_rows_at_once,
    pages_and_counts,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_sqlalchemy(world: Shop, engine: sa.Engine, story: Story) -> None:
    told = []
    for model in (Order, PlainOrder):
        with Session(engine) as session:
            told.append(story(session, model))
    assert told[0] == told[1]
    assert told[0]
    assert world.rows("orders") == world.rows("orders_plain")


def test_sqlalchemys_versions_notice_who_came_first(world: Shop, engine: sa.Engine) -> None:
    """version_id_col goes by the number of rows that an UPDATE found, which a cold row must be counted in."""
    for key in (25, 58):
        with Session(engine) as one, Session(engine) as other:
            mine, theirs = one.get_one(VersionedOrder, key), other.get_one(VersionedOrder, key)
            theirs.status = "theirs"
            other.commit()
            mine.status = "mine"
            with pytest.raises(sa.orm.exc.StaleDataError):
                one.commit()
            one.rollback()
            one.delete(mine)
            one.rollback()
            assert (mine.status, mine.changed) == ("theirs", theirs.changed)
    with psycopg.connect(world.dsn) as connection:
        connection.execute("update public.orders_plain p set status = o.status, changed = o.changed from public.orders o where o.id = p.id")


def test_what_a_view_cannot_do_with_sqlalchemy(world: Shop, engine: sa.Engine, door: str) -> None:
    """The guide says so: row locks and ON CONFLICT are the heap's, and on the port they go there."""
    upsert = insert(Order).values(id=57, placed_at=day(56), customer="again", amount=1)
    upsert = upsert.on_conflict_do_update(index_elements=["id", "placed_at"], set_={"details": {"again": True}})
    with Session(engine) as session, Session(engine) as other:
        locked = session.scalars(sa.select(Order).where(Order.id == 57).with_for_update()).one()
        waiting = sa.text("set lock_timeout = '100ms'")
        other.execute(waiting)
        if door == "name":
            # Nothing is locked, and nobody is told.
            other.execute(sa.update(Order).where(Order.id == 57).values(changed=9))
            other.rollback()
            with pytest.raises(sa.exc.DBAPIError, match="ON CONFLICT"):
                session.execute(upsert)
        else:
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                other.execute(sa.update(Order).where(Order.id == 57).values(changed=9))
            other.rollback()
            session.execute(upsert)
            session.expire_all()
            assert locked.details == {"again": True}
        session.rollback()


def test_the_guide_works(door: str, cluster: Cluster, template: str, tmp_path: Path) -> None:
    """By either door: the page says nothing of which one its reader takes."""
    found = blocks(PAGE)
    assert len(found) == 3
    with shop(cluster, template, tmp_path / "guide") as fresh:
        Reader(tmp_path, MODAK_DSN=fresh.door(door)).follow(found)
