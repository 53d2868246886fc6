//! napi binding.
