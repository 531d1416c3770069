(module (import "env" "system" (func (param i32) (result i32))) (func (export "colloid_invoke")))
