"""The custom resources as typed models: the CRDs are generated from them."""

GROUP = "serving.dualpace.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
