#!/bin/sh
# Takes out of a site-packages folder what a translator never opens. Run in the image's build, which
# then imports LiteLLM's app (terrace_translator.import_check).
set -eu
packages=${1:?usage: strip.sh SITE_PACKAGES}
proxy=$packages/litellm/proxy

# The admin UI and Swagger's assets (21 MB). LiteLLM mounts the folders even when both are off.
rm -rf "$proxy/_experimental/out" "$proxy/swagger" \
  "$packages/litellm/llms/huggingface/huggingface_llms_metadata"
mkdir -p "$proxy/swagger" "$proxy/_experimental/out/_next"
: >"$proxy/_experimental/out/index.html"
: >"$proxy/_experimental/out/.litellm_ui_ready"

# botocore describes 400 services (28 MB); a translator signs for Bedrock with STS credentials.
find "$packages/botocore/data" -mindepth 1 -maxdepth 1 -type d \
  ! -name 'bedrock*' ! -name 'sts' ! -name 'sso*' ! -name 'signin' -exec rm -rf {} +
