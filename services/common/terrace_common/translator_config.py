"""LiteLLM's configuration, made from the governance spec. LiteLLM only translates."""

from terrace_common.governance import BedrockProvider, Governance, Model

TIMEOUT_MARGIN_SECONDS = 30  # the guard's own limit must be the one that ends a call


def translator_config(governance: Governance) -> dict[str, object]:
    """The config of the translator: one entry per model, named by model name; no retries, no
    fallbacks, no cooldowns, no callbacks, no database. Credentials are ``os.environ/...`` names;
    a Bedrock provider with ``credentials: ambient`` has none (boto3 finds the pod's own).
    """
    timeout = governance.defaults.hard_stream_limit_seconds + TIMEOUT_MARGIN_SECONDS
    return {
        "model_list": [_entry(governance, model, timeout) for model in governance.models],
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {
            "num_retries": 0,
            "request_timeout": timeout,
            "global_disable_no_log_param": True,
            "drop_params": False,
        },
    }


def _entry(governance: Governance, model: Model, timeout: int) -> dict[str, object]:
    provider = governance.provider_of(model)
    params: dict[str, object] = {"timeout": timeout, "stream_timeout": timeout, "max_retries": 0}
    if isinstance(provider, BedrockProvider):
        # Plain bedrock/<id>: with a "converse/" prefix LiteLLM's pass-through keeps it in the path.
        params |= {
            "model": f"bedrock/{model.upstream_model}",
            "aws_region_name": provider.region,
        }
        if provider.credentials == "keys":
            params |= {
                "aws_access_key_id": "os.environ/AWS_ACCESS_KEY_ID",
                "aws_secret_access_key": "os.environ/AWS_SECRET_ACCESS_KEY",
            }
        if provider.endpoint is not None:
            params["aws_bedrock_runtime_endpoint"] = provider.endpoint
    else:
        params |= {
            "model": f"openai/{model.upstream_model}",
            "api_base": provider.api_base,
            "api_key": f"os.environ/{provider.api_key_env}",
        }
    entry: dict[str, object] = {"model_name": model.name, "litellm_params": params}
    info: dict[str, object] = {}
    if model.base_model is not None:
        # An application inference profile's ARN does not say which model it is.
        info["base_model"] = model.base_model
    if model.kind == "embeddings":
        info["mode"] = "embedding"
    return {**entry, "model_info": info} if info else entry
