"""What an operator can set. Read once, in `__main__`; nothing else looks at the environment."""

from dataclasses import dataclass
from pathlib import Path

from dualpace.core.errors import SettingsError
from dualpace.core.request import MAX_TARGET_S
from dualpace.core.service import ServiceSettings
from dualpace.core.settings import require, setting
from dualpace.gateway.limits.urgency import objectives_from_text
from dualpace.gateway.tools.dialect import DIALECT_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(ServiceSettings):
    """The HTTP front of a node."""

    model: str = setting("Model directory or GGUF file; only its tokenizer and header are read.")
    run_dir: str = setting("Directory, in shared memory, of the engines' sockets.")
    host: str = setting("Address to listen on.", default="127.0.0.1")
    port: int = setting("TCP port to listen on.", default=8000)
    listen_fd: int | None = setting(
        "File descriptor of a bound TCP socket to listen on, instead of host and port.",
        default=None,
    )
    served_model_name: str | None = setting(
        "Names that clients may ask for, separated by commas; unset: the model's file or folder"
        " name.",
        default=None,
    )
    strict_fields: bool = setting(
        "Whether fields that nobody knows are refused, and not left alone.", default=False
    )
    max_body_bytes: int = setting("Size of the largest request body.", default=8 * 1024 * 1024)
    body_timeout_s: float = setting("How long a client may take to send its request.", default=60.0)
    max_waiting_generations: int = setting(
        "Generations that may wait for their first token; beyond it 503.", default=1024
    )
    max_waiting_tokens: int = setting(
        "Prompt tokens of these, together; a prompt that comes alone is let in.", default=1 << 20
    )
    first_token_timeout_s: float = setting(
        "How long a request may wait for its first token before it ends with 504.", default=600.0
    )
    first_token_target_s: float = setting(
        "When the first token of a request that says nothing of it is due; what is due first goes"
        " first.",
        default=5.0,
    )
    inference_objectives: str = setting(
        "Priorities of llm-d's objectives, as name=priority,…; higher is sooner. Others have 0.",
        default="",
    )
    api_keys_file: str | None = setting(
        "JSON file of the keys that clients need, and their limits; read again when it changes."
        " Unset: no key is needed.",
        default=None,
    )
    redis_url: str | None = setting(
        "Redis in which limits are kept, such as redis://host:6379/0; unset: in this process.",
        default=None,
    )
    redis_down: str = setting(
        "While Redis is down: local keeps limits in this process, deny refuses requests.",
        default="local",
    )
    grpc_port: int | None = setting(
        "TCP port of the gRPC API, on the same host. Unset: there is none.", default=None
    )
    admin_port: int | None = setting(
        "TCP port for the operator: metrics, state, drain. Unset: there is none.", default=None
    )
    admin_host: str = setting("Address of the operator's port.", default="127.0.0.1")
    max_choices: int = setting(
        "Most generations of one request: n times the number of prompts.", default=128
    )
    tokenizer_threads: int = setting("Threads that render chat templates and tokenize.", default=2)
    tool_dialect: str = setting(
        "How the model calls tools: hermes, llama3_json, or auto, by its chat template.",
        default="auto",
    )
    ping_interval_s: float = setting("Silence after which a stream gets a comment.", default=15.0)
    engine_timeout_s: float = setting(
        "Silence after which an engine counts as hanging, and the node as not ready.", default=30.0
    )
    engine_wait_s: float = setting(
        "How long a request waits for an engine that died to be there again before it ends with an"
        " error.",
        default=300.0,
    )
    drain_grace_s: float = setting(
        "How long running requests may go on after SIGTERM before they are ended.", default=30.0
    )

    def __post_init__(self) -> None:
        require(0 <= self.port < 1 << 16, f"port: {self.port} is not in 0..65535")
        for name in ("admin_port", "grpc_port"):
            port = getattr(self, name)
            require(port is None or 0 <= port < 1 << 16, f"{name}: {port} is not in 0..65535")
        require(
            self.redis_down in ("local", "deny"), f"redis_down: {self.redis_down}: local or deny"
        )
        for name in (
            "max_body_bytes",
            "max_choices",
            "max_waiting_generations",
            "max_waiting_tokens",
            "tokenizer_threads",
            "body_timeout_s",
            "first_token_timeout_s",
        ):
            require(getattr(self, name) > 0, f"{name} must be positive")
        require(
            0 <= self.first_token_target_s <= MAX_TARGET_S,
            f"first_token_target_s: {self.first_token_target_s} is not in 0..{MAX_TARGET_S:g}",
        )
        try:
            objectives_from_text(self.inference_objectives)
        except ValueError as error:
            raise SettingsError(f"inference_objectives: {error}") from None
        for name in ("ping_interval_s", "engine_timeout_s", "engine_wait_s"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        require(self.drain_grace_s >= 0, "drain_grace_s must not be negative")
        require(
            self.tool_dialect in DIALECT_NAMES,
            f"tool_dialect: {self.tool_dialect} is none of {', '.join(DIALECT_NAMES)}",
        )
        require(Path(self.run_dir).is_dir(), f"run_dir: {self.run_dir} is not a directory")
        require(
            self.served_model_name is None or all(self.model_names),
            "served_model_name: names are separated by single commas",
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names given by the operator; empty when there are none."""
        if self.served_model_name is None:
            return ()
        return tuple(name.strip() for name in self.served_model_name.split(","))
