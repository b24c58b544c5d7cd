"""What the page asks for, as plain values: one method for each of its questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np

from shardwright.comparing import similar
from shardwright.comparing.similar import Similar
from shardwright.errors import UsageError
from shardwright.looking import overview, samples
from shardwright.looking.duplicates import Search
from shardwright.looking.latents import Agreement
from shardwright.looking.pictures import Previews
from shardwright.looking.sources import Source
from shardwright.looking.table import Numbers, Query

_PAGE, _MOST = 60, 240  # samples
_GROUPS, _SIDE_BY_SIDE = 10, 12
_POINTS = 100_000  # of a map
_GRID = 65535  # steps of a map's sides
_LISTED = 20  # ids
_LINKED = ("flag", "state")  # of what needs attention: the query of a link to it

Parameters = Mapping[str, str]
Answer = dict[str, Any]


class Viewer:
    """A source, perhaps another one to compare it with, and their pictures."""

    def __init__(self, pictures: Previews, other: Previews | None = None) -> None:
        self.pictures, self.others = pictures, other
        self.source: Source = pictures.source
        self.table = self.source.table
        self.search = Search(self.source)
        self._there = np.zeros(0, np.int64)  # of each sample its number in the other source, or -1
        if other is not None:
            self._compare(other.source)

    def _compare(self, other: Source) -> None:
        """Find each sample in the other source, and mark those that differ."""
        ids, captions = self.table.ids, self.table.captions
        numbers = {image_id: number for number, image_id in enumerate(other.table.ids)}
        self._there = np.array([numbers.get(image_id, -1) for image_id in ids], np.int64)
        pairs = enumerate(self._there.tolist())
        changed = [m >= 0 and captions[n] != other.table.captions[m] for n, m in pairs]
        both = self._there >= 0
        self.table.compared = {"both": both, "missing": ~both, "caption": np.array(changed, bool)}

    def overview(self, given: Parameters) -> Answer:
        """Give the overview."""
        described = overview.describe(self.source)
        found = [
            {
                "flag": each.flag,
                "state": each.state,
                "count": each.count,
                "text": each.text,
                "query": urlencode([(n, v) for n, v in vars(each).items() if n in _LINKED and v]),
            }
            for each in overview.attention_of(self.source, self.search.found)
        ]
        if described["vectors"] and self.search.found is None:
            text = "near-duplicates have not been searched"
            nobody: Answer = {"flag": None, "state": None, "count": 0}
            found.append({**nobody, "text": text, "query": "view=duplicates"})
        return {**described, "attention": found, "other": self._other()}

    def latents(self, given: Parameters) -> Answer:
        """Say how latents become pictures, and whether they look like their images."""
        found = []
        for component in self.pictures.latents:
            agreement = self.pictures.agreement(component)
            found.append(
                {
                    "component": component.name,
                    "label": self.pictures.label(component),
                    "agreement": None if agreement is None else round(agreement.own, 3),
                    "warning": unlike(component.name, agreement),
                }
            )
        return {"latents": found}

    def samples(self, given: Parameters) -> Answer:
        """Give a page of the samples that a query finds."""
        found = self._found(given)
        size = min(integer(given, "size", _PAGE, least=1), _MOST)
        page = integer(given, "page", 0)
        some = found[page * size : (page + 1) * size].tolist()
        return {
            "total": len(found),
            "page": page,
            "size": size,
            "samples": [self._brief(number) for number in some],
        }

    def sample(self, number: int, given: Parameters) -> Answer:
        """Give one sample in full, and its neighbours in what a query finds."""
        if given.get("brief"):
            return self._brief(number)
        others = self.others if self.number_there(number) is not None else None
        other, differences = None, list[Answer]()
        if others is not None:
            there = int(self._there[number])
            other = self._full(others, there)
            differences += samples.differences(self.source, number, others.source, there)
        return {
            **self._full(self.pictures, number),
            **self._beside(number, given),
            "similar": self._nearest(number),
            "other": other,
            "differences": differences,
        }

    def number_there(self, number: int) -> int | None:
        """Find a sample in the other source."""
        found = int(self._there[number]) if self.others else -1
        return found if found >= 0 else None

    def similar(self, given: Parameters) -> Answer:
        """Report on the search for similar samples; start it if asked to."""
        if given.get("start"):
            self.search.start()
        return self.search.report()

    def groups(self, given: Parameters) -> Answer:
        """Give groups of samples that are alike."""
        alike = self._similar()
        page = integer(given, "page", 0)
        try:
            threshold = float(given.get("threshold") or similar.DEFAULT)
        except ValueError:
            raise UsageError("threshold is no number", fix="give one from 0 to 1") from None
        found = alike.groups(max(threshold, similar.FLOOR))
        return {
            "groups": len(found),
            "samples": sum(map(len, found)),
            "page": page,
            "items": [
                {
                    "size": len(group),
                    "similarity": _weakest(alike, group),
                    "samples": [self._brief(n) for n in group[:_SIDE_BY_SIDE].tolist()],
                }
                for group in found[page * _GROUPS : (page + 1) * _GROUPS]
            ],
        }

    def map(self, given: Parameters) -> Answer:
        """Give points: the first two principal components of the vectors."""
        points, places = self._points(), self.search.places
        if not len(points):
            return {"n": [], "x": [], "y": [], "of": 0}
        shown = places[points].astype(np.float64)
        least, most = shown.min(axis=0), shown.max(axis=0)
        scaled = ((shown - least) / np.where(most > least, most - least, 1) * _GRID).round()
        x, y = scaled.astype(np.int64).T
        total = int(np.isfinite(places).all(axis=1).sum())
        return {"n": points.tolist(), "x": x.tolist(), "y": y.tolist(), "of": total}

    def colours(self, given: Parameters) -> Answer:
        """Give a colour for each point of the map."""
        points, by = self._points(), given.get("by", "bucket")
        if by == "text":
            words = given.get("text", "").split()
            hits = [self.table.captions.having(word)[points] for word in words]
            share = np.mean(hits, axis=0) * 100 if hits else np.zeros(len(points))
            return {"legend": [], "codes": share.round().astype(int).tolist()}
        if by == "flag":
            codes = np.zeros(len(points), np.int64)
            for code, marked in enumerate(self.table.flags.values(), 1):
                codes[marked[points]] = code
            return {"legend": ["no flag", *self.table.flags], "codes": codes.tolist()}
        column = self.table.parts if by == "part" else self.table.buckets
        codes = column.codes[points].tolist()
        return {"legend": [name or "none" for name in column.names], "codes": codes}

    def _found(self, given: Parameters) -> Numbers:
        return self.table.select(msgspec.convert(dict(given), Query))

    def _brief(self, number: int) -> Answer:
        return {**samples.brief(self.source, number), "other": self.number_there(number)}

    def _full(self, pictures: Previews, number: int) -> Answer:
        image = pictures.original(number)
        labels = [
            {"component": component.name, "label": pictures.label(component)}
            for component in pictures.latents
        ]
        shown = None if image is None else {**vars(image), **image.size._asdict()}
        return {**samples.full(pictures.source, number), "image": shown, "latents": labels}

    def _beside(self, number: int, given: Parameters) -> Answer:
        found = self._found(given)
        place = np.flatnonzero(found == number)[:1]  # none if the query does not find it
        before, after = found[place[place > 0] - 1], found[place[place < len(found) - 1] + 1]
        return {
            "previous": next(iter(before.tolist()), None),
            "next": next(iter(after.tolist()), None),
        }

    def _nearest(self, number: int) -> list[Answer]:
        """Give the nearest sample, if it is known."""
        found = self.search.found
        if found is None or (nearest := int(found.nearest[number])) < 0:
            return []
        similarity = round(float(found.similarity[number]), 4)
        return [{"n": nearest, "id": self.table.ids[nearest], "similarity": similarity}]

    def _similar(self) -> Similar:
        if self.search.found is None:
            raise UsageError("similar samples are not known yet", fix="start the search first")
        return self.search.found

    def _points(self) -> Numbers:
        """Choose the samples that have a place on the map; of very many, some."""
        self._similar()
        places = np.flatnonzero(np.isfinite(self.search.places).all(axis=1))
        return places[:: max(1, -(-len(places) // _POINTS))]

    def _other(self) -> Answer | None:
        if self.others is None:
            return None
        here, there = set(self.table.ids), self.others.source.table.ids
        only = [image_id for image_id in there if image_id not in here]
        return {
            "path": self.others.source.name,
            "both": int(self.table.compared["both"].sum()),
            "only_here": int(self.table.compared["missing"].sum()),
            "captions": int(self.table.compared["caption"].sum()),
            "only_there": only[:_LISTED],
            "only_there_count": len(only),
        }


def unlike(name: str, agreement: Agreement | None) -> str | None:
    """Warn of latents that do not look like their images.

    Pictures of one kind resemble each other, so each must be much more like its own.
    """
    if agreement is None or agreement.own >= (1 + max(agreement.others, 0)) / 2:
        return None
    return (
        f"the {name} latents do not look like their images (correlation {agreement.own:.2f}, "
        f"with other images {agreement.others:.2f}): were they made by another model, or from "
        "other images?"
    )


def integer(given: Parameters, name: str, default: int, least: int = 0) -> int:
    """Read a whole number of a request."""
    text = given.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise UsageError(f"{name} is {text!r}", fix=f"give a whole number from {least}")
    return int(text)


def _weakest(found: Similar, group: Numbers) -> float:
    """Give the weakest link that holds a group together."""
    inside = np.isin(found.first, group) & np.isin(found.second, group)
    return round(float(found.strength[inside].min()), 4)
