(module (table 100000000 funcref) (func (export "colloid_invoke")))
