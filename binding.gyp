# The front door for tools that expect one. The build itself is binding/build.mjs,
# which npm's install script calls without node-gyp.
{
	'targets': [{
		'target_name': 'guard',
		'type': 'none',
		'actions': [{
			'action_name': 'build',
			'inputs': ['binding/build.mjs'],
			'outputs': ['prebuilds/always'],
			'action': ['node', 'binding/build.mjs'],
		}],
	}],
}
