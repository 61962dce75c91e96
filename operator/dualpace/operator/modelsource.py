"""The `model` volume: from a claim, an image, or the hub; and where the model lies in it."""

from typing import Any

from dualpace.operator.model.service import ServiceSpec

Manifest = dict[str, Any]

MODEL_VOLUME = "model"
MODEL_DIR = "/models"
_HUB_LINK = f"{MODEL_DIR}/current"


def model_path(spec: ServiceSpec) -> str:
    """Return the path of the model directory or file inside the containers."""
    source = spec.model.claim or spec.model.image
    if source is None:
        return _HUB_LINK
    return MODEL_DIR if source.path is None else f"{MODEL_DIR}/{source.path}"


def model_volumes(spec: ServiceSpec) -> list[Manifest]:
    """Return the volume, in a list of one."""
    model = spec.model
    volume: Manifest
    if model.claim is not None:
        volume = {"persistentVolumeClaim": {"claimName": model.claim.name, "readOnly": True}}
    elif model.image is not None:
        policy = spec.images.pull_policy
        volume = {"image": {"reference": model.image.reference, "pullPolicy": policy}}
    elif model.hub is not None and model.hub.cache_claim is not None:
        volume = {"persistentVolumeClaim": {"claimName": model.hub.cache_claim}}
    else:
        volume = {"emptyDir": {}}
    return [{"name": MODEL_VOLUME, **volume}]


def model_setup(spec: ServiceSpec, image: str) -> Manifest | None:
    """Return the init container that downloads a hub model, or None: it is there already."""
    hub = spec.model.hub
    if hub is None:
        return None
    wanted = hub.repository if hub.revision is None else f"{hub.repository}@{hub.revision}"
    env: list[Manifest] = [{"name": "HF_HOME", "value": f"{MODEL_DIR}/hub"}]
    if hub.token_secret is not None:
        reference = hub.token_secret.model_dump(mode="json")
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    small = {"cpu": "1", "memory": "1024Mi"}
    return {
        "name": "model",
        "image": image,
        "imagePullPolicy": spec.images.pull_policy,
        "command": ["python", "-m", "dualpace.cli", "fetch"],
        "args": [f"--model={wanted}", f"--link={_HUB_LINK}"],
        "env": env,
        "resources": {"requests": dict(small), "limits": small},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": MODEL_VOLUME, "mountPath": MODEL_DIR}],
    }
