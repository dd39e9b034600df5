#!/usr/bin/env bash
# Build the wheel, install it where no checkout is near, and let it read its own catalogue.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/.venv/bin/python" -m build --wheel --outdir "$work/dist" "$root" >/dev/null
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$work"/dist/*.whl
cd "$work"
"$work/venv/bin/sm120patch" --version
"$work/venv/bin/sm120patch" list
"$work/venv/bin/sm120patch" show allreduce-fusion >/dev/null
# Ansible's collection is in it, without its tests.
fleet="$("$work/venv/bin/sm120patch" fleet-path)/ansible_collections/sm120patch/fleet"
for part in galaxy.yml meta/runtime.yml plugins/modules/patch_set.py roles/rollout playbooks/rollout.yml; do
  test -e "$fleet/$part" || { echo "the wheel lacks $part of the collection" >&2; exit 1; }
done
if test -e "$fleet/tests"; then echo "the wheel holds the tests of the collection" >&2; exit 1; fi
