package main

import (
	"context"

	"colloid.net/e2e/cluster"
)

func runKeeper() { cluster.RunKeeper() }

func measureFailover(ctx context.Context) error { return nil }

func measureIdle(ctx context.Context) error { return nil }
