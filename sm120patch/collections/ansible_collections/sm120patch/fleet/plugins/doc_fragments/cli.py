"""Documentation that all modules of the collection share."""

from __future__ import annotations


class ModuleDocFragment:
    """Options that say which tool is run on which environment."""

    DOCUMENTATION = r"""
options:
  executable:
    description:
      - The C(sm120patch) command on the node, by name or by path.
      - A name is looked up in the C(PATH) of the node.
      - Nothing else is needed there; the modules run under the node's Python and do not import the
        tool.
    type: path
    default: sm120patch
  catalogue:
    description:
      - Directory on the node with C(manifests/) and C(patches/) to use instead of the shipped
        catalogue.
    type: path
  extra_catalogues:
    description:
      - Directories on the node with C(manifests/) and C(patches/) to use as well.
    type: list
    elements: path
    default: []
requirements:
  - sm120patch on the node
notes:
  - The tool is started in C(/), so a C(sm120patch.toml) that happens to lie in a working directory
    is never taken.
  - Variables for the tool, such as E(SM120PATCH_CATALOGUE_PATH) or E(CUDA_HOME), are given with the
    C(environment) keyword of the task.
  - Command lines and variables in the answers are free of secrets; the tool hides them before they
    are printed or stored.
attributes:
  platform:
    description: Target operating systems.
    support: full
    platforms: posix
"""

    ENVIRONMENT = r"""
options:
  environment:
    description:
      - Prefix of the environment to work on, such as that of a virtual environment.
    type: path
    aliases: [prefix]
  python:
    description:
      - Interpreter of the environment to work on, instead of O(environment).
    type: path
"""
