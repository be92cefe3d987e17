//go:build !unix

// Package role lets a test binary play the other processes of its own tests.
package role
