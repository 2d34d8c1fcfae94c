"""diffusers: its models as targets, and a pipeline whose samples satisfy a constraint."""

try:
    import diffusers as _diffusers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "this needs diffusers: pip install 'casal[diffusers]', or pip install -e '.[diffusers]' in a clone"
    ) from error

from casal.integrations.diffusers.model import from_diffusers
from casal.integrations.diffusers.pipeline import ConstrainedPipeline, ConstrainedPipelineOutput

__all__ = ["ConstrainedPipeline", "ConstrainedPipelineOutput", "from_diffusers"]
