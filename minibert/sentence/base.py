"""`SentenceModel`, the base of the classes of sentence-transformers: parts, settings, prompts, fingerprint, saving."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from minibert._utils.files import make_folder, write_json
from minibert._utils.keywords import SAVING_KEYWORDS, check_keywords, check_remote_code
from minibert._utils.reporting import warn_caller
from minibert._utils.torch_interop import as_tensors, check_torch
from minibert._utils.validation import FloatArray, brief, check_int, check_stored_int
from minibert.bert.config import BertConfig, check_settings
from minibert.checkpoint.safetensors import write_safetensors
from minibert.encode.modules import STATIC
from minibert.encode.options import SplitOptions, WindowOptions
from minibert.encode.static import StaticModel, load_static
from minibert.errors import ModelFormatError
from minibert.models.backend import choose_ops, choose_sharing
from minibert.models.bert import BertModel
from minibert.models.fingerprint import Fingerprinted, sha256, sha256_of_arrays, sha256_of_results
from minibert.models.heads import BertForMaskedLM, BertForSequenceClassification
from minibert.models.options import LoadOptions
from minibert.models.torch_like import TorchLike
from minibert.sentence import loading
from minibert.sentence.imitations import ModelCardData, Transformer
from minibert.tokenizer.bert_tokenizer import BertTokenizer
from minibert.tokenizer.texts import check_text
from minibert.tokenizer.windows import PairWindows, TokenWindows

# sentence-transformers has had modules under these names since its beginning, and still reads them.
HOME = "sentence_transformers.models"

FINGERPRINT_TEXTS = (
    "minibert",
    "The quick brown fox jumps over the lazy dog.",
    "Größe, naïveté и Привет: 東京, مرحبا, \u2603 \U0001f600!",
    "On 2019-03-01 it cost $1,234.56 (about 12 %), see https://example.org/a_b?c=d#e.",
    "A long text is cut, or not, at the limit of the model. " * 50,
)
"""The texts whose results are in a fingerprint."""

SavedModule = tuple[str, Mapping[str, Any], Mapping[str, FloatArray]]
"""A module after the Transformer: its type, its config.json, and its weights by name."""

# By the class of the model: the task and the output of a Transformer in sentence_bert_config.json, and in its
# modality_config the output of the model.
_TRANSFORMERS: dict[type[Any], tuple[str, str, str]] = {
    BertModel: ("feature-extraction", "token_embeddings", "last_hidden_state"),
    BertForMaskedLM: ("fill-mask", "token_embeddings", "logits"),
    BertForSequenceClassification: ("sequence-classification", "scores", "logits"),
}

# The most texts tokenized together. This limits the memory that the encodings of a large corpus take.
_TEXTS_AT_ONCE = 1024


class SentenceModel(Fingerprinted, TorchLike):
    """A model of sentence-transformers; the base of `SentenceTransformer`, `CrossEncoder` and the other two.

    Attributes
    ----------
    model : BertModel, or the model with the head
    tokenizer : BertTokenizer
    prompts : dict of str to str
    default_prompt_name : str or None
    model_card_data : ModelCardData, or the given object
    """

    _call: ClassVar[str]  # the class, for messages and files
    _organisation: ClassVar[str]  # of short hub ids
    _model: ClassVar[type[Any]]
    _fewer_layers: ClassVar[str] = "Save fewer layers with transformers, and give the folder."
    _prompt_names: ClassVar[tuple[str, ...]] = loading.ALWAYS_THERE
    _of_transformer: ClassVar[tuple[str, ...]] = ()  # further settings of sentence_bert_config.json
    _windows: ClassVar[type[TokenWindows]] = TokenWindows

    model: Any
    tokenizer: BertTokenizer
    default_prompt_name: str | None

    def _load(self, name: Any, load: Mapping[str, Any], **settings: Any) -> loading.SentenceFiles:
        """Load prompts, tokenizer and model from the keywords of a constructor, and its own `settings`.

        What can be refused early comes first: the caller's values (before anything is downloaded), the files of
        settings, the tokenizer, and then the tensors. A setting that is None becomes the one that
        config_sentence_transformers.json stores.
        """
        self._settings = tuple(settings)
        for setting, value in settings.items():
            setattr(self, setting, value)
        if name is None:
            raise TypeError(f"{self._call}() needs a folder or a hub id; it does not have a default model.")
        options, asked = loading.check_load(self._call, load)
        card, prompts = load.get("model_card_data"), load.get("prompts")
        self.model_card_data = ModelCardData() if card is None else card
        model_files = loading.read_files(options.locate(loading.full_name(name, self._organisation)), self._call)
        if not model_files.modules:
            self._check_plain(model_files)
        model_files = self._read_older(model_files)
        check_remote_code(self._call, load.get("trust_remote_code"), model_files.config)
        self._builtin_prompts = loading.builtin_prompts(os.fspath(name), model_files.config.get("_name_or_path"))
        self._prompts, self.default_prompt_name = loading.read_prompts(
            model_files.stored, load, self._builtin_prompts, model_files.source, self._prompt_names
        )
        self._given_prompts = frozenset(prompts if isinstance(prompts, Mapping) else ())
        self._warned: set[str] = set()
        if choose_sharing(options.shared_weights, options.backend, options.compute_type) is None:
            model_files.files.begin()
        if model_files.modules and model_files.modules[0].kind == STATIC:
            self._load_static(model_files, options, asked)
        else:
            self.tokenizer = BertTokenizer.from_files(model_files.bert)
            config = BertConfig.from_files(model_files.bert)
            asked = [*loading.asked_settings(model_files.where, model_files.settings, load, ModelFormatError), *asked]
            self._use_settings(model_files, asked, config)
            only_states = {"output_hidden_states": False} if self._model is BertModel else {}
            self.model = self._model.from_files(model_files.bert, options, config=config, **only_states)
        with loading.prefixed(f"{model_files.source}: config_sentence_transformers.json has", ModelFormatError):
            for setting, value in settings.items():
                if value is None:
                    setattr(self, setting, model_files.stored.get(setting))
        return model_files

    def _load_static(
        self, model_files: loading.SentenceFiles, options: LoadOptions, asked: list[loading.Asked]
    ) -> None:
        """Load a static model; only a Dense or a LayerNorm after the mean needs ops."""
        if asked:
            (name, *_) = asked[0].settings
            raise ValueError(f"{name}= is a setting of BERT, and {model_files.source} is static. Leave it out.")
        needs_ops = {"Dense", "LayerNorm"} & {entry.kind for entry in model_files.modules}
        ops = [choose_ops(options.backend, options.num_threads, "float32", options.idle_release)] if needs_ops else []
        self.model, self.tokenizer = load_static(model_files.bert, *ops)

    def _check_plain(self, model_files: loading.SentenceFiles) -> None:
        """Refuse a model without modules.json that the class cannot use, or warn of it."""

    def _read_older(self, model_files: loading.SentenceFiles) -> loading.SentenceFiles:
        """Return the files with the settings of older formats under their present names."""
        return model_files

    def _use_settings(self, model_files: loading.SentenceFiles, asked: list[loading.Asked], config: BertConfig) -> None:
        """Set the tokenizer's limit; refuse other settings of the files and the caller that the model does not have."""
        limit = self._check_transformer(model_files)
        shifted = self.tokenizer.padding_side == "left" and not config.family.counts_tokens
        if shifted or "attention_mask" not in self.tokenizer.model_input_names:
            setting = "padding_side 'left'" if shifted else "model_input_names without 'attention_mask'"
            warn_caller(
                f"{model_files.source}: tokenizer_config.json has {setting}. In sentence-transformers, the result of "
                "a text then depends on the longest text of its batch. Here it is that of the text alone."
            )
        change = "save the model with {} in its config, with transformers, and give the folder"
        for where, error, of_bert, settings in asked:
            with loading.prefixed(where, error):
                if of_bert:
                    check_settings(loading.OF_BERT[0], settings, config, change, self._fewer_layers)
                    continue
                if (asked_limit := settings.pop("model_max_length", None)) is not None:
                    limit = check_int("model_max_length", asked_limit, 1)
                self.tokenizer.check_asked(loading.OF_TOKENIZER[0], settings)
        if limit is not None:  # it replaces that of the tokenizer's files, even if that is lower
            self.tokenizer.model_max_length = limit

    def _check_transformer(self, model_files: loading.SentenceFiles) -> int | None:
        """Refuse settings of a Transformer that minibert does not implement; return max_seq_length."""
        where, settings = model_files.where, model_files.settings
        limit = settings.get("max_seq_length")
        if limit is not None:
            check_stored_int(f"{where}: max_seq_length", limit, self.tokenizer.num_special_tokens_to_add())
        if settings.get("do_lower_case") and not self.tokenizer.do_lower_case:
            raise ModelFormatError(f"{where}: do_lower_case with a cased tokenizer is not implemented.")
        # A Transformer module without `transformer_task` computes features. For other modules, and without
        # modules.json, the class decides.
        plain = model_files.modules and model_files.modules[0].kind == "Transformer"
        implemented = self._transformer()
        if isinstance(modalities := settings.get("modality_config"), dict):
            texts = {name: modalities[name] for name in ("text", "message") if name in modalities}
            settings = {**settings, "modality_config": texts}
        usual_task = "feature-extraction" if plain else implemented["transformer_task"]
        for name, value in {"transformer_task": usual_task, **settings}.items():
            if value != implemented.get(name, value):
                raise ModelFormatError(f"{where}: {name}={brief(value)}; expected {implemented[name]!r}.")
            off: tuple[Any, ...] = (None, {}) if name.endswith("_length") else (None, {}, False, "", [])
            if name not in (*implemented, *loading.TRANSFORMER_KEYS, *self._of_transformer) and value not in off:
                raise ModelFormatError(f"{where}: {name}={brief(value)} is not implemented.")
        return limit

    def _transformer(self) -> dict[str, Any]:
        """Return the settings of a Transformer, in sentence_bert_config.json, that the class implements."""
        task, output, method_output = _TRANSFORMERS[self._model]
        text = {"text": {"method": "forward", "method_output_name": method_output}}
        return {"transformer_task": task, "module_output_name": output, "modality_config": text}

    def close(self) -> None:
        """Close the model: its weights, threads and buffers are given back; a later call raises a RuntimeError."""
        self.model.close()

    # -- settings

    @property
    def prompts(self) -> dict[str, str]:
        """The texts to put before inputs, by name. Settable."""
        return self._prompts

    @prompts.setter
    def prompts(self, value: Mapping[str, str]) -> None:
        self._prompts = loading.check_prompts(value, "prompts", TypeError)
        self._given_prompts = frozenset(self._prompts)

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of one input, special tokens included. Settable, up to max_position_embeddings.

        It is the tokenizer's `model_max_length`, as in sentence-transformers, or max_position_embeddings if that is
        lower. A model with rotary positions can take longer texts, and does if it is set.
        """
        return Transformer(self.model, self.tokenizer).max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self._set_limit("max_seq_length", value)

    def _set_limit(self, name: str, value: int) -> None:
        """Set `max_seq_length`, which the caller gave by this name."""
        most = self.model.config.longest
        least = self.tokenizer.num_special_tokens_to_add(self._windows is PairWindows)
        self.tokenizer.model_max_length = check_int(
            name, value, least, most, also=" (the number of special tokens, and max_position_embeddings)"
        )

    def get_max_seq_length(self) -> int:
        """Return `max_seq_length`."""
        return self.max_seq_length

    def resolve_prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        """Return the text to put before each input: `prompt`, else the prompt with the name, else an empty text.

        Raises
        ------
        TypeError, ValueError
            The prompt is not a text, or the name is not one of the prompts.

        Warns
        -----
        UserWarning
            Both a prompt and a name are given. The name is ignored.
        """
        if prompt is not None:
            if prompt_name is not None:
                warn_caller(
                    f"prompt={brief(prompt)} and prompt_name={brief(prompt_name)} are both given; the prompt is used, "
                    "and prompt_name is ignored. Give one of them."
                )
            return prompt
        name = prompt_name if prompt_name is not None else self.default_prompt_name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self.prompts:
            raise ValueError(f"prompt_name={brief(name)}; this model has {', '.join(self.prompts) or 'none'}.")
        return check_text(self.prompts[name], f"prompts[{name!r}]")  # callers may change the dict

    def windows(
        self, options: WindowOptions, max_length: int | None = None, windows_class: type[TokenWindows] | None = None
    ) -> TokenWindows:
        """Return what turns texts into windows of tokens, of `max_seq_length` tokens if the caller does not say.

        Raises
        ------
        TypeError, ValueError
            An option is wrong, or does not fit the model.
        """
        return (windows_class or self._windows)(
            self.tokenizer,
            prompt=self.resolve_prompt(options.prompt, options.prompt_name),
            max_length=self.max_seq_length if max_length is None else max_length,
            truncation=options.truncation,
            stride=options.stride if isinstance(options, SplitOptions) else 0,
            at_once=min(_TEXTS_AT_ONCE, 32 * check_int("batch_size", options.batch_size, 1)),
        )

    @property
    def compute_type(self) -> str:
        """The type of numbers that the encoder multiplies; see `BertModel.compute_type`."""
        return self.model.compute_type

    @property
    def config(self) -> BertConfig:
        """The config of the BERT model."""
        return self.model.config

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the values of each trained array of the BERT model, as its `named_parameters` does."""
        return self.model.named_parameters()

    def parameters(self) -> Iterator[Any]:
        """Yield the trained arrays of the BERT model, as its `parameters` does."""
        return self.model.parameters()

    # -- pools of processes, which are the threads of this process

    def start_multi_process_pool(self, target_devices: Sequence[object] | None = None) -> dict[str, Any]:
        """Return a pool without processes, for ``encode(pool=...)``: the threads of this process compute."""
        loading.check_device(None if target_devices is None else list(target_devices))
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: object) -> None:
        """Do nothing, because a pool does not have processes here."""

    @staticmethod
    def _check_call(
        device: object, processing_kwargs: object, convert_to_tensor: bool = False, convert_to_numpy: bool = True
    ) -> None:
        """Refuse arguments of sentence-transformers that would change the result, and tensors if torch is missing."""
        loading.check_device(device)
        if convert_to_tensor or not convert_to_numpy:
            check_torch("convert_to_tensor=True" if convert_to_tensor else "convert_to_numpy=False")
        if processing_kwargs is not None and (not isinstance(processing_kwargs, Mapping) or processing_kwargs):
            raise ValueError(f"processing_kwargs={brief(processing_kwargs)}; expected None or {{}}.")

    # -- fingerprint and files

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return what `fingerprint` is computed from, by name: the results are those of `FINGERPRINT_TEXTS`.

        A function that the caller gave, such as an activation, is there by its results only.
        """
        silenced = copy.copy(self)
        silenced.tokenizer, silenced._builtin_prompts = self.tokenizer.silenced(), {}
        parts = {"class": self._call, **self.model.parts_without_results(), **self._saved_transformer()}
        parts |= {"tokenizer": sha256(self.tokenizer.fingerprint_parts()), "max_seq_length": self.max_seq_length}
        parts |= {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt_name}
        with contextlib.suppress(ValueError):  # of a function, which has no name in files
            parts |= self._saved_settings()
            modules = self._saved_modules()
            parts["modules"] = [[kind, config, sha256_of_arrays(tensors.items())] for kind, config, tensors in modules]
        parts.pop("similarity_fn_name", None)  # it changes no result
        return {**parts, "results": sha256_of_results(self.model.ops, silenced._results())}

    def _results(self) -> Iterator[Any]:
        """Yield the arrays that the model makes of `FINGERPRINT_TEXTS`."""
        raise NotImplementedError

    def save_pretrained(self, path: str | os.PathLike[str], **harmless: Any) -> None:
        """Write the model into a folder; minibert and sentence-transformers load it as the same model.

        Parameters
        ----------
        path : str or path
            It is made if it does not exist. Other files in it are not touched.
        **harmless
            As for `BertModel.save_pretrained`; and model_name, create_model_card and train_datasets of
            sentence-transformers, for a model card, which minibert does not write.

        Raises
        ------
        ValueError, OSError
            A keyword would change the files; a setting does not have a name in files; a file cannot be written.
        """
        check_keywords(f"{self._call}.save_pretrained", harmless, {**SAVING_KEYWORDS, **loading.OF_SAVING})
        if isinstance(self.model, StaticModel):
            raise ValueError(f"{self.model.source} is static, and minibert does not write such files. Copy the folder.")
        modules, settings = self._saved_modules(), self._saved_settings()
        folder = Path(make_folder(path, "path"))
        (folder / "modules.json").unlink(missing_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        listed = [{"path": "", "type": f"{HOME}.Transformer"}]
        for number, (module_type, config, tensors) in enumerate(modules, start=1):
            name = f"{number}_{module_type.rpartition('.')[2]}"
            listed.append({"path": name, "type": module_type})
            part = Path(make_folder(folder / name))
            write_json(part / "config.json", dict(config))
            if tensors:
                write_safetensors(part / "model.safetensors", tensors.items())
        transformer = self._saved_transformer()
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": self.max_seq_length, **transformer})
        prompts = {"prompts": self.prompts, "default_prompt_name": self.default_prompt_name}
        write_json(folder / "config_sentence_transformers.json", {"model_type": self._call, **prompts, **settings})
        # It is deleted first and written last, so a folder that was not written to its end is not taken for a model.
        write_json(folder / "modules.json", [{"idx": i, "name": str(i), **module} for i, module in enumerate(listed)])

    save = save_pretrained  # its older name

    def _saved_modules(self) -> list[SavedModule]:
        """Return the modules after the Transformer."""
        return []

    def _saved_transformer(self) -> dict[str, Any]:
        """Return further settings of sentence_bert_config.json."""
        return {} if self._model is BertModel else self._transformer()

    def _saved_settings(self) -> dict[str, Any]:
        """Return further settings of config_sentence_transformers.json."""
        return {name: value for name in self._settings if (value := getattr(self, name)) is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, max_seq_length={self.max_seq_length})"


def as_requested(result: Any, convert_to_tensor: bool, convert_to_numpy: bool, single: bool) -> Any:
    """Convert the results of `encode` to the requested type.

    Parameters
    ----------
    result : ndarray; or for vectors of tokens, an ndarray, a list of ndarrays or of dicts, or a dict
    convert_to_tensor : bool
        Arrays become tensors.
    convert_to_numpy : bool
        False: the array of several vectors becomes a list of tensors, unless `convert_to_tensor` is True.
    single : bool
        The result is that of one text.
    """
    if convert_to_numpy and not convert_to_tensor:
        return result
    tensors = as_tensors(result, np.ndarray | np.generic)
    return tensors if convert_to_tensor or single or isinstance(result, dict) else list(tensors)
