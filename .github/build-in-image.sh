#!/bin/sh
# Builds in a container, for the C library of its image. Variable: TARGET, a triple of rustc.
set -eu

case "$TARGET" in
*-musl)
  apk add --no-cache build-base rustup
  # The addon and the zygote's library are loaded by Node, which brings musl along.
  export RUSTFLAGS='-C target-feature=-crt-static'
  rustup-init -y --profile minimal
  ;;
*)
  curl --proto '=https' -fsS https://sh.rustup.rs | sh -s -- -y --profile minimal
  ;;
esac

. "$HOME/.cargo/env"
npm ci
npm run build -- --target "$TARGET"
