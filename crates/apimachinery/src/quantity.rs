//! Resource quantities such as `100m`, `1Gi`, `2.5e3`.
