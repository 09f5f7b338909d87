// The Go module sigs.k8s.io/controller-runtime: an operator that keeps a ConfigMap for each object of a custom resource.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	limit     = 2 * time.Minute
	finalizer = "cargo.example.com/keep"
)

var (
	namespace = os.Getenv("KNARR_NAMESPACE")
	kind      = schema.GroupVersionKind{Group: "cargo.example.com", Version: "v1", Kind: "Crate"}
	key       = types.NamespacedName{Namespace: namespace, Name: "one"}
)

func crate() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object
}

type operator struct{ client client.Client }

func (o operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	found := crate()
	if err := o.client.Get(ctx, request.NamespacedName, found); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if found.GetDeletionTimestamp() != nil {
		left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: found.GetNamespace(), Name: found.GetName() + "-left"}}
		if err := o.client.Create(ctx, left); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, err
		}
		controllerutil.RemoveFinalizer(found, finalizer)
		return ctrl.Result{}, o.client.Update(ctx, found)
	}
	if controllerutil.AddFinalizer(found, finalizer) {
		return ctrl.Result{}, o.client.Update(ctx, found)
	}
	goods, _, _ := unstructured.NestedString(found.Object, "spec", "goods")
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: found.GetNamespace(), Name: found.GetName()}}
	_, err := controllerutil.CreateOrUpdate(ctx, o.client, kept, func() error {
		kept.Data = map[string]string{"goods": goods}
		return controllerutil.SetControllerReference(found, kept, o.client.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if shown, _, _ := unstructured.NestedString(found.Object, "status", "stowed"); shown == goods {
		return ctrl.Result{}, nil
	}
	if err := unstructured.SetNestedField(found.Object, goods, "status", "stowed"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, o.client.Status().Update(ctx, found)
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func eventually(ctx context.Context, what string, ask func(context.Context) (bool, error)) {
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, ask); err != nil {
		check(fmt.Errorf("%s: %w", what, err))
	}
}

func definition() *unstructured.Unstructured {
	text := map[string]any{"type": "string"}
	object := func(name string) map[string]any {
		return map[string]any{"type": "object", "properties": map[string]any{name: text}}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "crates.cargo.example.com"},
		"spec": map[string]any{
			"group": kind.Group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": kind.Kind, "singular": "crate", "plural": "crates"},
			"versions": []any{map[string]any{
				"name": kind.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type":       "object",
					"properties": map[string]any{"spec": object("goods"), "status": object("stowed")},
				}},
			}},
		},
	}}
}

// Starts a manager; its end is sent to the channel.
func start(ctx context.Context, name string) (ctrl.Manager, <-chan error) {
	manager, err := ctrl.NewManager(config.GetConfigOrDie(), ctrl.Options{
		LeaderElection:                true,
		LeaderElectionID:              "cargo.example.com",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       server.Options{BindAddress: "0"},
		Cache:                         cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	check(err)
	check(ctrl.NewControllerManagedBy(manager).Named(name).For(crate()).Owns(&corev1.ConfigMap{}).
		Complete(operator{manager.GetClient()}))
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	return manager, ended
}

func main() {
	ctrl.SetLogger(zap.New())
	ctx, cancel := context.WithTimeout(context.Background(), 4*limit)
	defer cancel()
	direct, err := client.New(config.GetConfigOrDie(), client.Options{})
	check(err)

	fmt.Println("try: custom resource")
	check(direct.Create(ctx, definition()))
	wanted := crate()
	wanted.SetNamespace(namespace)
	wanted.SetName(key.Name)
	check(unstructured.SetNestedField(wanted.Object, "wool", "spec", "goods"))
	eventually(ctx, "the resource is served", func(ctx context.Context) (bool, error) {
		err := direct.Create(ctx, wanted)
		if meta.IsNoMatchError(err) {
			// Discovery does not show the kind yet.
			return false, nil
		}
		return err == nil, client.IgnoreNotFound(err)
	})

	fmt.Println("try: reconcile, status, owner")
	first, stopFirst := context.WithCancel(ctx)
	leading, firstEnded := start(first, "one")
	second, stopSecond := context.WithCancel(ctx)
	waiting, secondEnded := start(second, "two")
	stowed := func(goods string) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			found, kept := crate(), &corev1.ConfigMap{}
			if err := direct.Get(ctx, key, found); err != nil {
				return false, err
			}
			if err := direct.Get(ctx, key, kept); err != nil {
				return false, client.IgnoreNotFound(err)
			}
			shown, _, _ := unstructured.NestedString(found.Object, "status", "stowed")
			return shown == goods && kept.Data["goods"] == goods && metav1.IsControlledBy(kept, found), nil
		}
	}
	eventually(ctx, "the operator's ConfigMap and status", stowed("wool"))

	fmt.Println("try: what it owns is made again")
	check(direct.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name}}))
	eventually(ctx, "the ConfigMap is there again", stowed("wool"))

	fmt.Println("try: leader resigns, the other one takes over")
	stop, ended, rest := stopFirst, firstEnded, waiting
	select {
	case <-leading.Elected():
	case <-waiting.Elected():
		stop, ended, rest = stopSecond, secondEnded, leading
	}
	stop()
	check(<-ended)
	select {
	case <-rest.Elected():
	case <-time.After(limit):
		check(fmt.Errorf("nobody leads after the first one resigned"))
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"goods": "amber"}}`))
	check(direct.Patch(ctx, wanted, patch))
	eventually(ctx, "the change, seen by the other one", stowed("amber"))

	fmt.Println("try: finalizer, garbage collection")
	check(direct.Delete(ctx, wanted))
	eventually(ctx, "all is gone but what the finalizer left", func(ctx context.Context) (bool, error) {
		gone := func(name string, object client.Object) bool {
			return apierrors.IsNotFound(direct.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, object))
		}
		return gone(key.Name, crate()) && gone(key.Name, &corev1.ConfigMap{}) && !gone("one-left", &corev1.ConfigMap{}), nil
	})
	stopFirst()
	stopSecond()
}
