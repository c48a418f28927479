"""Pictures of a run: its learning curve, its scores, and the decision boundary of a model of two features.

You need matplotlib.
"""

from __future__ import annotations

import functools
import io
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from river import base, compose

from streamsvm.core.explaining import COLOR_AGAINST, COLOR_FOR, to_plot_text
from streamsvm.files.container import ModelFileError
from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.files.model_file import write_file
from streamsvm.stream.progress import LearningCurve
from streamsvm.stream.rows import find_learner, split_pipeline
from streamsvm.stream.tables import TableEncoder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID = 150  # points along each side
_DEVIATIONS = 3.0  # of each feature, around its mean, are drawn at least

_Moments = tuple[np.ndarray, np.ndarray]
LabelledRows = Iterable[tuple[Mapping[Any, Any], Any]]


_WITH_METADATA = ("png", "svg", "pdf", "ps", "eps")  # formats of pictures that say what wrote them


class DrawingError(Exception):
    """A picture cannot be drawn or written. The message says why, and what would help."""


def check_plot_path(path: str | Path) -> None:
    """Raise a `DrawingError` if no picture can be written to a path.

    The folder may be missing, or the suffix may not be that of a picture format.

    Parameters
    ----------
    path
        The file to write the picture to. A picture that exists there will be replaced.
    """
    path = Path(path)
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise missing_package_error("drawing", "matplotlib", "plot", error) from error

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        known = ", ".join(f".{name}" for name in sorted(formats))
        raise DrawingError(f"{path}: its suffix says no format of pictures: end it in .png, .svg or .pdf (all are {known})")
    if path.is_dir():
        raise DrawingError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise DrawingError(f"{path}: there is no folder {path.parent}: make it first")


def save_plot(path: str | Path, model: Any, curve: LearningCurve | None = None, rows: LabelledRows = ()) -> list[str]:
    """Draw a learning curve, and next to it the decision boundary of a model of two features, into a file.

    Parameters
    ----------
    path
        The file. Its suffix says the format (png, svg, pdf and others that matplotlib writes). A picture that exists there is
        replaced, either completely or not at all.
    model
        A model of this library or of river, or a pipeline. It is not changed.
    curve
        The learning curve; None if there is none.
    rows
        Pairs of a row and its label, to draw over the boundary.

    Returns
    -------
    list of str
        The reason why a part of the picture was left out, for each part that was.

    Raises
    ------
    DrawingError
        Neither part can be drawn, or the file cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from river import datasets, preprocessing
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.plots import save_plot
    >>> from streamsvm.stream import IterableSource, LearningLoop
    >>> loop = LearningLoop(IterableSource(datasets.Bananas()), preprocessing.StandardScaler() | BSGDClassifier(budget=50))
    >>> end = loop.run(1000)
    >>> save_plot(pathlib.Path(tempfile.mkdtemp(), "bananas.png"), loop.model, loop.curve)
    []
    """
    check_plot_path(path)
    from matplotlib.figure import Figure  # noqa: PLC0415

    left_out: list[str] = []
    parts: list[Callable[[Axes], None]] = []
    if curve is not None and curve.points:
        parts.append(functools.partial(draw_curve, curve=curve))
    else:
        left_out.append(f"no learning curve: {'the model was saved without one' if curve is None else 'no row was scored yet'}")
    try:
        parts.append(_Boundary(model, rows).draw)
    except DrawingError as error:
        left_out.append(f"no decision boundary: {error}")
    if not parts:
        raise DrawingError(f"there is nothing to draw: {'; '.join(left_out)}")
    figure = Figure(figsize=(7.0 * len(parts), 5.5), layout="constrained")
    picture = io.BytesIO()
    try:
        for number, part in enumerate(parts, 1):
            part(figure.add_subplot(1, len(parts), number))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")  # boxes stand for letters that the font has not
            suffix = Path(path).suffix[1:].lower()
            said = {"Software" if suffix == "png" else "Creator": "written by streamsvm"} if suffix in _WITH_METADATA else None
            figure.savefig(picture, format=suffix, dpi=110, metadata=said)
        write_file(Path(path), picture.getvalue())
    except (OSError, RuntimeError, ValueError, ImportError, ModelFileError) as error:  # some formats need programs of their own
        raise DrawingError(f"{path}: the picture was not written: {error}") from error
    return left_out


def draw_curve(axes: Axes, curve: LearningCurve) -> None:
    """Draw a learning curve: the metric over all rows so far, and over the last ones.

    Parameters
    ----------
    axes
        Axes of matplotlib.
    curve
        The learning curve of a `LearningLoop`, or from the header of its checkpoint (`LearningCurve.from_state`).
    """
    rows, metric, windowed, guess = np.reshape([point[:4] for point in curve.points], (-1, 4)).T
    axes.plot(rows, metric, color="black", label="all rows so far")
    axes.plot(rows, windowed, color=COLOR_FOR, alpha=0.8, label=f"last {curve.window:,} rows")
    if np.isfinite(guess).any():
        axes.plot(rows, guess, color="grey", linestyle="--", label="guessing")
    axes.set(xlabel="row", ylabel=to_plot_text(curve.metric), title="Each row is predicted before it is learned")
    axes.xaxis.set_major_formatter(lambda row, _: f"{row:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend()


def draw_boundary(axes: Axes, model: Any, rows: LabelledRows = ()) -> None:
    """Draw the decisions of a model over its two features, and its support vectors.

    Both are drawn in the units of the rows. The decisions are those of the whole pipeline. If it predicts numbers, these are
    drawn instead. The region is large enough for the support vectors, for the rows that you give, and for three standard
    deviations around the means of a scaler (a transformer that has ``means`` and ``vars``, like river's StandardScaler).
    Support vectors are left out if the transformers do not scale each feature separately.

    Parameters
    ----------
    axes
        Axes of matplotlib.
    model, rows
        As in `save_plot`.

    Raises
    ------
    DrawingError
        The model has learned nothing, does not have two features, or makes them of others.
    """
    _Boundary(model, rows).draw(axes)


class _Boundary:
    """The decisions of a model on a grid, all computed before anything is drawn."""

    def __init__(self, model: Any, rows: LabelledRows) -> None:
        self._steps, self.last = split_pipeline(model)
        self._learner = find_learner(model)
        scaler = _scaler_of(model)
        self.names = _two_features(self._learner, scaler)
        try:
            self.rows = [([float(x.get(name, 0.0)) for name in self.names], y) for x, y in rows]
            counts = getattr(scaler, "counts", self.names)
            known = next((step.learned_columns for step in self._steps if isinstance(step, TableEncoder)), counts)
            made = set(self.names) - set(known)  # such as those of categories
            if made or (hasattr(self._learner, "feature_names") and set(self._seen_row(0.0, 0.0)) != set(self.names)):
                raise DrawingError(f"its features are made of others than {' and '.join(map(short_repr, self.names))}")
            moments = _means_and_deviations(scaler, self.names)
            unscaled = all(isinstance(step, TableEncoder) and step.learned_scaler is None for step in self._steps)
            scale = getattr(self._learner, "scale_in_use", None)
            if moments is None and scale is not None and unscaled:
                order = [self._learner.feature_names.index(name) for name in self.names]
                moments = scale.location[order], scale.spread[order]
            self.vectors = self._support_vectors(moments)
            self.sides = self._grid_sides(moments)
            grid = itertools.product(self.sides[1].tolist(), self.sides[0].tolist())
            self._take_decisions([self._decision_of(self._seen_row(x, y)) for y, x in grid])
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:  # of any step of a pipeline
            names = " and ".join(map(short_repr, self.names))
            raise DrawingError(f"the model does not predict rows of {names} alone: {error}") from error

    def _seen_row(self, x: float, y: float) -> Any:
        features: dict[Hashable, Any] = {self.names[0]: x, self.names[1]: y}
        for step in self._steps:
            features = step.transform_one(features)
        return features

    def _scaled_point(self, point: np.ndarray) -> np.ndarray:
        seen = self._seen_row(*point.tolist())
        return np.array([seen[name] for name in self.names], np.float64)

    def _support_vectors(self, moments: _Moments | None) -> np.ndarray:
        """Return the support vectors in the units of the rows, float64 [n, 2]; none where they have no place among the rows."""
        vectors = getattr(self._learner, "support_vectors", None)
        if vectors is None or np.shape(vectors)[1:] != (2,):
            return np.empty((0, 2))
        scale = getattr(self._learner, "scale_in_use", None)
        if scale is not None:
            vectors = scale.inverse_transform(vectors)
        at_zero = self._scaled_point(np.zeros(2))
        slopes = self._scaled_point(np.ones(2)) - at_zero
        candidates = [] if moments is None else [moments]
        if slopes.all():  # scalers without means and variances, and no scaler at all
            candidates.append((-at_zero / slopes, 1.0 / slopes))
        for origin, unit in candidates:
            steps, expected = np.where(unit == 0.0, 1.0, 0.5 * unit), np.where(unit == 0.0, 0.0, 0.5)
            if np.allclose(self._scaled_point(origin + steps), expected, atol=1e-3):
                return origin + unit * vectors
        return np.empty((0, 2))

    def _grid_sides(self, moments: _Moments | None) -> np.ndarray:
        """Return the coordinates of the grid, float64 [2, points]."""
        bounds = [*self.vectors, *(point for point, _ in self.rows)]
        if moments is not None:
            means, deviations = moments
            bounds += [means - _DEVIATIONS * deviations, means + _DEVIATIONS * deviations]
        if not bounds:
            raise DrawingError(
                f"nothing tells the range of {' and '.join(map(short_repr, self.names))}: there is neither a scaler "
                "with means and "
                "variances, nor are there support vectors in the units of the rows"
            )
        low, high = np.min(bounds, axis=0), np.max(bounds, axis=0)
        margin = np.where(high > low, 0.05 * (high - low), 1.0)
        return np.linspace(low - margin, high + margin, _GRID).T

    def _decision_of(self, seen: Any) -> Any:
        """Return a number, or a dict of label to number."""
        if isinstance(self.last, base.Regressor):
            return self.last.predict_one(seen)
        if hasattr(self.last, "decision_function_one"):
            return self.last.decision_function_one(seen)
        if not isinstance(self.last, base.Classifier):
            raise DrawingError(f"{type(self.last).__name__} predicts neither labels nor numbers")
        try:
            return self.last.predict_proba_one(seen)
        except NotImplementedError:
            return {self.last.predict_one(seen): 1.0}

    def _take_decisions(self, decisions: list[Any]) -> None:
        labels: list[Any] = []
        if isinstance(decisions[0], dict):
            labels = _in_order({label for decision in decisions for label in decision})
            values = np.array([[decision.get(label, 0.0) for label in labels] for decision in decisions])
            if len(labels) == 2:
                values = values[:, 1] - values[:, 0]
        else:
            values = np.array(decisions, np.float64)
            if len(seen := getattr(self.last, "labels", ())) == 2:
                labels = sorted(seen, key=lambda label: label == self.last.positive_label)
        if values.size == 0 or not np.isfinite(values).all():
            raise DrawingError("some of its decision values are not finite" if values.size else "it has learned no label")
        self.labels, self.values = labels, values.reshape(_GRID, _GRID, *values.shape[1:])

    def draw(self, axes: Axes) -> None:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.patches import Patch  # noqa: PLC0415

        if self.values.ndim == 3:
            palette = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
            colours = [palette[(2 * i + i // 10) % 20] for i in range(len(self.labels))]  # the strong ones first
            self._draw_regions(axes, colours)
        else:
            colours = [COLOR_AGAINST, COLOR_FOR]
            self._draw_values(axes)
        of = dict(zip(self.labels, colours, strict=False))
        handles: list[Any] = [Patch(color=of[label], alpha=0.6, label=f"label {to_plot_text(label)}") for label in of]
        for label, colour in of.items():
            x, y = np.reshape([point for point, other in self.rows if other == label], (-1, 2)).T
            axes.scatter(x, y, s=3, color=colour, alpha=0.35)
        if len(self.vectors):
            size = min(max(4000.0 / len(self.vectors), 6.0), 50.0)
            x, y = self.vectors.T
            handles.append(axes.scatter(x, y, s=size, facecolors="none", edgecolors="black", label="support vectors"))
        if handles:
            axes.legend(handles=handles, loc="upper right")
        (left, *_, right), (bottom, *_, top) = self.sides
        title = to_plot_text(type(self._learner).__name__)
        if hasattr(self._learner, "n_support"):
            title += f", {self._learner.n_support:,} support vectors, {self._learner.nbytes / 1024:,.0f} KiB"
        axes.set(xlim=(left, right), ylim=(bottom, top), title=title)
        axes.set(xlabel=f"feature {to_plot_text(self.names[0])}", ylabel=f"feature {to_plot_text(self.names[1])}")

    def _draw_values(self, axes: Axes) -> None:
        values = self.values
        if isinstance(self.last, base.Regressor):
            low, high = values.min(), values.max()
            levels = np.linspace(low, max(high, low + 1e-6 * max(abs(low), 1.0)), 22)
            axes.figure.colorbar(axes.contourf(*self.sides, values, levels=levels), ax=axes, label="prediction")
            return
        limit = np.quantile(np.abs(values), 0.9) or 1.0
        axes.contourf(*self.sides, np.clip(values, -limit, limit), levels=np.linspace(-limit, limit, 22), cmap="RdBu", alpha=0.55)
        if values.min() < 0.0 < values.max():
            axes.contour(*self.sides, values, levels=[0.0], colors="black", linewidths=2)

    def _draw_regions(self, axes: Axes, colours: list[Any]) -> None:
        for number, colour in enumerate(colours):
            lead = self.values[..., number] - np.delete(self.values, number, axis=2).max(axis=2, initial=-np.inf)
            lead = np.nan_to_num(lead, posinf=1.0)  # of a single label
            if lead.max() > 0.0:
                axes.contourf(*self.sides, lead, levels=[0.0, lead.max()], colors=[colour], alpha=0.4)
            if lead.min() < 0.0 < lead.max():
                axes.contour(*self.sides, lead, levels=[0.0], colors="black", linewidths=1)


def _scaler_of(model: Any) -> Any:
    """Return the first transformer of a pipeline that has means, be it inside a table's encoder; None if there is none."""
    steps = list(model.steps.values())[:-1] if isinstance(model, compose.Pipeline) else []
    scalers = (step.learned_scaler if isinstance(step, TableEncoder) else step for step in steps)
    return next((scaler for scaler in scalers if hasattr(scaler, "means")), None)


def _two_features(last: Any, scaler: Any) -> list[Any]:
    names = getattr(last, "feature_names", None)
    if names is None:
        names = getattr(scaler, "counts", None)
    if names is None:
        raise DrawingError(f"nothing tells the features of {type(last).__name__}")
    if len(names) != 2:
        raise DrawingError(f"it is drawn for two features, and the model has {len(names) or 'learned none'}")
    return list(names)


def _means_and_deviations(scaler: Any, names: list[Any]) -> _Moments | None:
    """Return means and standard deviations of the features before they are scaled, as far as a scaler has them."""
    try:
        moments = np.array([[scaler.means[name], scaler.vars[name]] for name in names if name in scaler.counts], np.float64)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return (moments[:, 0], np.sqrt(moments[:, 1])) if moments.shape == (2, 2) and (moments[:, 1] >= 0.0).all() else None


def _in_order(labels: Iterable[Any]) -> list[Any]:
    try:
        return sorted(labels)
    except TypeError:  # of several types
        return sorted(labels, key=str)
