;; The smallest module that answers colloid wasm invoke: it returns its first argument.
;; Make it with: wat2wasm hello.wat
(module
  (import "colloid" "colloid_argument" (func $argument (param i32 i32 i32) (result i32)))
  (import "colloid" "colloid_output" (func $output (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "colloid_invoke") (result i32)
    (local $length i32)
    (local.set $length (call $argument (i32.const 0) (i32.const 1024) (i32.const 4096)))
    (if (i32.lt_s (local.get $length) (i32.const 0)) (then (return (i32.const 1))))
    (call $output (i32.const 1024) (local.get $length))))
