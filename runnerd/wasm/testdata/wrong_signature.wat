(module (import "colloid" "colloid_time" (func (param i32))) (func (export "colloid_invoke")))
