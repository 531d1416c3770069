(module (memory 65536) (func (export "colloid_invoke")))
